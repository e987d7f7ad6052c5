#pragma once
// Searching, counting and what depends on values: on Tensor, without gradients. Meaning is PyTorch's. All run on the
// CPU; tensors of other devices are copied there and the results back, so that the program waits, as it would for the
// sizes of most of these results in any case.
#include <optional>
#include <vector>

#include "tensor/ops.h"

namespace lockstep {

struct SearchOptions {
  bool right = false;  ///< behind equal elements, not in front of them
  Tensor sorter = {};  ///< i64, of the sequence's shape: the order in which it is sorted
};
/// For each value, how many elements of its row of the sequence lie before it: i64, of the values' shape. The sequence
/// is sorted along its last dim, and has one dim, or the values' dims but for the last.
Tensor searchsorted(const Tensor& sequence, const Tensor& values, const SearchOptions& options = {});
/// The same with one sorted list for all.
Tensor bucketize(const Tensor& values, const Tensor& boundaries, bool right = false);
/// How often 0, 1, 2 ... are in a list of whole numbers >= 0: i64. weights: their sum instead, in the list's order; f32
/// for f32, else f64 (i64 for an empty list).
Tensor bincount(const Tensor& x, const Tensor& weights = {}, int64_t minlength = 0);
/// Counts of f32 or f64 elements in `bins` equal parts of [low, high], in x's dtype. low = high: from the smallest to
/// the largest. What is outside, or NaN, is not counted.
Tensor histc(const Tensor& x, int64_t bins = 100, double low = 0, double high = 0);

struct Unique {
  Tensor values;   ///< each once (a NaN equals none)
  Tensor inverse;  ///< i64, of x's shape: x = values[inverse]; with a dim, a list of its size
  Tensor counts;   ///< i64: how often
};
/// The elements, sorted.
Unique unique(const Tensor& x);
/// The slices along dim, sorted by their first elements, then by the second, and so on; NaN behind all. Error for
/// slices without elements.
Unique unique(const Tensor& x, int64_t dim);
/// The same of runs of equal elements, or slices, in the order in which they lie.
Unique unique_consecutive(const Tensor& x);
Unique unique_consecutive(const Tensor& x, int64_t dim);
/// Where elements are not 0: i64 (how many, dims), in row-major order.
Tensor nonzero(const Tensor& x);
/// nonzero() by dims: the columns as lists, for index_put().
std::vector<Tensor> nonzero_places(const Tensor& x);

/// For index_put(): where the elements x[indices] of a row-major x of this shape lie, in the result's shape. i64, on
/// the CPU.
Tensor indexed_places(const char* op, const Shape& shape, const std::vector<Tensor>& indices);

}  // namespace lockstep
