#pragma once
// More pooling, composed of max_pool2d, avg_pool2d and adaptive_avg_pool2d: for signals (N, C, L), images (N,
// C, H, W) and volumes (N, C, D, H, W). Options have one value per dim after C. Meaning as in torch.nn.functional.
#include "autograd/ops.h"

namespace lockstep {

/// Maximum of each window; padding counts as -inf.
Variable max_pool(const Variable& x, const PoolArgs& args);
/// max_pool() with the positions of the maxima: i64, flat over the dims after C (PyTorch's return_indices).
VariableIndices max_pool_indices(const Variable& x, const PoolArgs& args);
/// Mean of each window.
Variable avg_pool(const Variable& x, const PoolArgs& args);
/// Mean over windows that are chosen so that the dims after C get these sizes; a size of -1 keeps that of x.
Variable adaptive_avg_pool(const Variable& x, const Dims& sizes);
/// Maximum over the windows of adaptive_avg_pool(), with positions as in max_pool_indices().
VariableIndices adaptive_max_pool(const Variable& x, const Dims& sizes);
/// (sum of x^p)^(1/p) over each window; p > 0. Error if there is padding.
Variable lp_pool(const Variable& x, double p, const PoolArgs& args);
/// Writes the values of x to the positions from max_pool_indices(), and zeros elsewhere. `sizes`: the sizes of the
/// result's dims after C. If a position occurs more than once, its last value is written.
Variable max_unpool(const Variable& x, const Tensor& indices, const Dims& sizes);

}  // namespace lockstep
