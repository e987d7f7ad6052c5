#pragma once
// Pooling beyond max_pool2d, avg_pool2d and adaptive_avg_pool2d, for signals (N, C, L), images (N, C, H, W) and volumes
// (N, C, D, H, W) alike, composed of those. Options have a value for each dim behind C. Meaning is
// torch.nn.functional's.
#include "autograd/ops.h"

namespace lockstep {

Variable max_pool(const Variable& x, const PoolArgs& args);
/// With the places of the maxima, i64, in all that is behind C (PyTorch's return_indices).
VariableIndices max_pool_indices(const Variable& x, const PoolArgs& args);
Variable avg_pool(const Variable& x, const PoolArgs& args);
/// `sizes`: of the result; -1: as x.
Variable adaptive_avg_pool(const Variable& x, const Dims& sizes);
VariableIndices adaptive_max_pool(const Variable& x, const Dims& sizes);
/// (sum of x^p)^(1/p) over each window; p > 0. No padding.
Variable lp_pool(const Variable& x, double p, const PoolArgs& args);
/// Numbers back at the places that max_pool_indices gave, among zeros, in results whose sizes behind C are `sizes`;
/// of equal places the last one counts.
Variable max_unpool(const Variable& x, const Tensor& indices, const Dims& sizes);

}  // namespace lockstep
