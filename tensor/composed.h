#pragma once
// Functions on Tensor that are made of other operations; autograd/composed.h has the same names for Variable.
#include <optional>
#include <vector>

#include "tensor/search.h"

namespace lockstep {

/// Where a quantile lies that falls between two elements.
enum class Interpolation { linear, lower, higher, nearest, midpoint };

#define Value Tensor
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/composed.def"
#undef Value
ValuesIndices median(const Tensor& x, int64_t dim, bool keepdim = false);
/// The k-th smallest along a dim, from 1 on, and its place; NaN is larger than all.
ValuesIndices kthvalue(const Tensor& x, int64_t k, int64_t dim = -1, bool keepdim = false);
/// Of vectors (or scalars) of one dtype: a tensor for each, of all their sizes, that counts along its own dim. Views.
/// xy: the first two dims change places.
std::vector<Tensor> meshgrid(const std::vector<Tensor>& vectors, bool xy = false);

}  // namespace lockstep
