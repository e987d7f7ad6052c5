#pragma once
// Functions that are composed of other operations, for Tensor and, with gradients, for Variable.
#include <initializer_list>
#include <optional>
#include <vector>

#include "autograd/ops.h"
#include "extensions/layers/search.h"

namespace lockstep {

/// The value of a quantile that falls between two elements: `linear` interpolates, `midpoint` takes their mean, the
/// others take the lower, the higher or the nearest element (halfway: the element with the even index).
enum class Interpolation { linear, lower, higher, nearest, midpoint };

#define Value Tensor
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "extensions/layers/composed.def"
#undef Value
#define Value Variable
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "extensions/layers/composed.def"
#undef Value

/// Median along a dim and its index; for an even number of elements, the lower middle element. NaN if any is NaN.
ValuesIndices median(const Tensor& x, int64_t dim, bool keepdim = false);
VariableIndices median(const Variable& x, int64_t dim, bool keepdim = false);
/// The k-th smallest element along a dim, k from 1, and its index. NaN counts as largest.
ValuesIndices kthvalue(const Tensor& x, int64_t k, int64_t dim = -1, bool keepdim = false);
VariableIndices kthvalue(const Variable& x, int64_t k, int64_t dim = -1, bool keepdim = false);
/// Coordinate grids of vectors (or scalars) of one dtype. Returns a view of each vector. All views have one shape,
/// whose dim i has the size of vector i. View i repeats vector i along all other dims. xy: the first two dims are
/// swapped (NumPy's default).
std::vector<Tensor> meshgrid(const std::vector<Tensor>& vectors, bool xy = false);
std::vector<Variable> meshgrid(const std::vector<Variable>& vectors, bool xy = false);
/// meshgrid() of a braced list of tensors. Records nothing, so the result has no gradient.
inline std::vector<Tensor> meshgrid(std::initializer_list<Tensor> vectors, bool xy = false) {
  return meshgrid(std::vector<Tensor>(vectors), xy);
}

}  // namespace lockstep
