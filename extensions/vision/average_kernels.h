#pragma once
// The kernels of average pooling. Images are row-major or channels-last (tensor/layout.h).
#include "tensor/kernel_args.h"
#include "tensor/op.h"
#include "tensor/tensor.h"

namespace lockstep {

/// Mean of each window of x (N, C, H, W); args has the windows' size, stride and padding.
using AveragePool2d = void(const Tensor& x, const PoolArgs& args, Tensor& out);
/// Gradient of AveragePool2d: adds each element of grad, in equal parts, to the elements of its window.
using AveragePool2dGrad = void(const Tensor& grad, const PoolArgs& args, Tensor& grad_x);
/// Mean of each window of x (N, C, H, W); out has one element per window: (N, C, windows down, windows across).
using AdaptiveAveragePool2d = void(const Tensor& x, Tensor& out);
/// Gradient of AdaptiveAveragePool2d: adds each element of grad, in equal parts, to the elements of its window.
using AdaptiveAveragePool2dGrad = void(const Tensor& grad, Tensor& grad_x);

namespace on_cpu {
AveragePool2d avg_pool2d;
AveragePool2dGrad avg_pool2d_grad;
AdaptiveAveragePool2d adaptive_avg_pool2d;
AdaptiveAveragePool2dGrad adaptive_avg_pool2d_grad;
}  // namespace on_cpu
namespace on_cuda {
AveragePool2d avg_pool2d;
AveragePool2dGrad avg_pool2d_grad;
AdaptiveAveragePool2d adaptive_avg_pool2d;
AdaptiveAveragePool2dGrad adaptive_avg_pool2d_grad;
}  // namespace on_cuda

namespace kernels {
extern const Op<AveragePool2d> avg_pool2d;
extern const Op<AveragePool2dGrad> avg_pool2d_grad;
extern const Op<AdaptiveAveragePool2d> adaptive_avg_pool2d;
extern const Op<AdaptiveAveragePool2dGrad> adaptive_avg_pool2d_grad;
}  // namespace kernels

}  // namespace lockstep
