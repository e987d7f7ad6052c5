#pragma once
// Searching and counting, and operations whose result sizes depend on values, with the semantics of PyTorch. They take
// Tensors and have no gradients. All run on the CPU: tensors of other devices are copied there, and results back. The
// copy waits for the device, but for most of these results the host must wait anyway, to know their size.
#include <vector>

#include "tensor/ops.h"

namespace lockstep {

/// Options of searchsorted().
struct SearchOptions {
  bool right = false;  ///< true: insert after equal elements; false: before them
  Tensor sorter = {};  ///< i64, of the sequence's shape: the order that sorts the sequence
};
/// For each value, the index at which to insert it into a sorted row: i64, of the values' shape. `sequence` is one row
/// for all values, or has a row (its last dim) for each row of `values`.
Tensor searchsorted(const Tensor& sequence, const Tensor& values, const SearchOptions& options = {});
/// searchsorted() of all values in one sorted list, `boundaries`, which has one dim.
Tensor bucketize(const Tensor& values, const Tensor& boundaries, bool right = false);
/// Counts how often 0, 1, 2, ... occur in a list of integers >= 0: i64, at least `minlength` long. With weights: sums
/// of the weights instead, added in the list's order; f32 for f32 weights, else f64 (i64 for an empty list).
Tensor bincount(const Tensor& x, const Tensor& weights = {}, int64_t minlength = 0);
/// Histogram of f32 or f64 elements in `bins` equal parts of [low, high], in x's dtype. If low = high, the range goes
/// from the smallest to the largest element instead. Elements outside the range and NaN are not counted.
Tensor histc(const Tensor& x, int64_t bins = 100, double low = 0, double high = 0);

/// Result of unique().
struct Unique {
  Tensor values;   ///< each distinct value once; every NaN is distinct
  Tensor inverse;  ///< i64, of x's shape: x = values[inverse]; with a dim, a list of that dim's size
  Tensor counts;   ///< i64: number of occurrences
};
/// The distinct elements, sorted.
Unique unique(const Tensor& x);
/// The distinct slices along dim, sorted by their first element, then by the second, and so on; NaN last. Error for
/// slices without elements.
Unique unique(const Tensor& x, int64_t dim);
/// Like unique(), but joins equal elements only if they are neighbours, and keeps the order of x.
Unique unique_consecutive(const Tensor& x);
/// Like unique_consecutive(x), but for the slices along dim.
Unique unique_consecutive(const Tensor& x, int64_t dim);
/// Positions of the elements that are not 0: i64 (count, dims), in row-major order.
Tensor nonzero(const Tensor& x);
/// The positions that nonzero() returns, as one list of indices for each dim. For index_put().
std::vector<Tensor> nonzero_places(const Tensor& x);

/// Flat positions of the elements x[indices] in a row-major x of this shape. The result is i64, on the CPU, and has the
/// shape of x[indices]. For index_put(); `op` names the caller in Errors.
Tensor indexed_places(const char* op, const Shape& shape, const std::vector<Tensor>& indices);

}  // namespace lockstep
