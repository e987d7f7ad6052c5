#pragma once
// Convolution by cuDNN, if the build has it and LOCKSTEP_CUDNN is not 0. Internal.
#include <string>

#include "tensor/kernels.h"

namespace lockstep::cuda {

/// Compute conv2d, conv2d_grad_input and conv2d_grad_weight of kernels:: (the last without the bias) by cuDNN. Return
/// false if cuDNN does not support the call: then nothing was written, and our own kernel must compute the result.
/// Throw if cuDNN accepted the call and failed.
bool cudnn_conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args, const Tensor& out);
bool cudnn_conv2d_grad_input(const Tensor& grad, const Tensor& w, const ConvArgs& args, const Tensor& grad_x);
bool cudnn_conv2d_grad_weight(const Tensor& grad, const Tensor& x, const ConvArgs& args, const Tensor& grad_w);
/// The version of cuDNN, such as "9.19.0"; empty in a build without cuDNN.
std::string cudnn_version();

}  // namespace lockstep::cuda
