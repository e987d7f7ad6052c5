#pragma once
// Convolution of f32 by oneDNN, for conv.cpp. Each function returns true if it has computed the result; it returns
// false and does nothing if oneDNN is absent or has no fast implementation.
#include "tensor/kernels.h"

namespace lockstep::on_cpu {

/// out = convolution of x and w, plus bias if defined.
bool onednn_conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args, Tensor& out);
/// grad_x = the gradient of the input x.
bool onednn_conv2d_grad_input(const Tensor& grad, const Tensor& w, const ConvArgs& args, Tensor& grad_x);
/// grad_w = the gradient of w, and grad_bias = that of the bias if grad_bias is defined.
bool onednn_conv2d_grad_weight(const Tensor& grad, const Tensor& x, const ConvArgs& args, Tensor& grad_w,
                               Tensor& grad_bias);

}  // namespace lockstep::on_cpu
