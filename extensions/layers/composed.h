#pragma once
// Functions composed of other operations, for Tensor and, with gradients, for Variable: written once, in composed.inc.
#include <initializer_list>
#include <optional>
#include <vector>

#include "autograd/ops.h"
#include "extensions/layers/search.h"

namespace lockstep {

/// The value of a quantile that falls between two elements: `linear` interpolates, `midpoint` takes their mean, the
/// others take the lower, the higher or the nearest element (halfway: the element with the even index).
enum class Interpolation { linear, lower, higher, nearest, midpoint };

/// Euclidean distance of each row of a (..., P, M) to each row of b (..., R, M): (..., P, R). Needs memory for
/// P R M elements.
Tensor cdist(const Tensor& a, const Tensor& b);
Variable cdist(const Variable& a, const Variable& b);
/// gather() after x and index (i64) have been broadcast to each other in all dims but `dim`.
Tensor take_along_dim(const Tensor& x, const Tensor& index, int64_t dim);
Variable take_along_dim(const Variable& x, const Tensor& index, int64_t dim);
/// log(cumsum(exp(x))) along dim, without overflow.
Tensor logcumsumexp(const Tensor& x, int64_t dim);
Variable logcumsumexp(const Variable& x, int64_t dim);
/// The q-quantile, q in [0, 1]: along dim, or of all elements. `interpolation` says which value lies between two
/// elements. NaN if any is NaN.
Tensor quantile(const Tensor& x, double q, std::optional<int64_t> dim = {}, bool keepdim = false,
                Interpolation interpolation = Interpolation::linear);
Variable quantile(const Variable& x, double q, std::optional<int64_t> dim = {}, bool keepdim = false,
                  Interpolation interpolation = Interpolation::linear);
/// Median of all elements; for an even number, the lower middle one. NaN if any is NaN. One element gets the gradient.
Tensor median(const Tensor& x);
Variable median(const Variable& x);
/// Median along a dim and its index; for an even number of elements, the lower middle element. NaN if any is NaN.
ValuesIndices median(const Tensor& x, int64_t dim, bool keepdim = false);
VariableIndices median(const Variable& x, int64_t dim, bool keepdim = false);
/// The k-th smallest element along a dim, k from 1, and its index. NaN counts as largest.
ValuesIndices kthvalue(const Tensor& x, int64_t k, int64_t dim = -1, bool keepdim = false);
VariableIndices kthvalue(const Variable& x, int64_t k, int64_t dim = -1, bool keepdim = false);
/// x sorted along dim 0, ascending.
Tensor msort(const Tensor& x);
Variable msort(const Variable& x);
/// The elements where mask (bool, broadcasts with x) is true, in one dim.
Tensor masked_select(const Tensor& x, const Tensor& mask);
Variable masked_select(const Variable& x, const Tensor& mask);
/// A copy of x with x[indices] = values (accumulate: += values). An index is i64 (negative: from the end) and
/// broadcasts with the others, or a bool mask over as many dims as it has; an undefined index takes the whole dim.
/// values broadcasts to the shape of x[indices]. If several values go to one place, the last one stays; accumulate adds
/// them in order.
Tensor index_put(const Tensor& x, const std::vector<Tensor>& indices, const Tensor& values, bool accumulate = false);
Variable index_put(const Variable& x, const std::vector<Tensor>& indices, const Variable& values,
                   bool accumulate = false);
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
