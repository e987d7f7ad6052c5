#pragma once
// Convolution of f32 by oneDNN, for conv.cpp. Each returns false, having done nothing, where oneDNN is absent or has no
// fast implementation.
#include "tensor/kernels.h"

namespace lockstep::on_cpu {

bool onednn_conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args, Tensor& out);
bool onednn_conv2d_grad_input(const Tensor& grad, const Tensor& w, const ConvArgs& args, Tensor& grad_x);
bool onednn_conv2d_grad_weight(const Tensor& grad, const Tensor& x, const ConvArgs& args, Tensor& grad_w,
                               Tensor& grad_bias);

}  // namespace lockstep::on_cpu
