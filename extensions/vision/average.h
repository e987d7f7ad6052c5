#pragma once
// Average pooling of images (N, C, H, W). A channels-last x gives a channels-last result.
#include "autograd/ops.h"

namespace lockstep {

/// Mean of each window of x: (N, C, P, Q). Padding counts as zeros if args.count_include_pad. No dilation.
Tensor avg_pool2d(const Tensor& x, const PoolArgs& args);
Variable avg_pool2d(const Variable& x, const PoolArgs& args);
/// Mean over height x width nearly equal windows that cover x: (N, C, height, width).
Tensor adaptive_avg_pool2d(const Tensor& x, int64_t height, int64_t width);
Variable adaptive_avg_pool2d(const Variable& x, int64_t height, int64_t width);
/// Gradient of avg_pool2d().
Tensor avg_pool2d_grad(const Tensor& grad, const Shape& input_shape, const PoolArgs& args);
/// Gradient of adaptive_avg_pool2d().
Tensor adaptive_avg_pool2d_grad(const Tensor& grad, const Shape& input_shape);

}  // namespace lockstep
