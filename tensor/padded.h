#pragma once
// Matrices whose rows begin a multiple of 64 elements apart. With a vocabulary of 50,257 words, most rows of scores
// would otherwise begin at odd addresses, where products on a GPU read and write one element at a time.
//
//   memory of scores (rows, 50257):
//     row 0 │ 50,257 scores │ 47 unused │ row 1 │ 50,257 scores │ 47 unused │ ...
#include <algorithm>

#include "tensor/ops.h"

namespace lockstep {

/// The distance between rows of `columns` elements in empty_padded(): the next multiple of 64.
constexpr int64_t padded_columns(int64_t columns) { return (columns + 63) / 64 * 64; }

/// An uninitialised tensor with padded rows: a view of the first shape.back() columns of a row-major tensor that has
/// padded_columns() columns.
inline Tensor empty_padded(const Shape& shape, TensorOptions options = {}) {
  LOCKSTEP_CHECK(shape.rank() > 0, "[empty_padded] expected at least 1 dim, got a scalar");
  Shape full = shape;
  full[shape.rank() - 1] = padded_columns(shape.back());
  return empty(full, options).narrow(-1, 0, shape.back());
}

/// True for a matrix whose rows are contiguous; there may be gaps between rows.
inline bool has_full_rows(const Tensor& x) {
  return x.dim() == 2 && (x.is_contiguous() || (x.strides()[1] == 1 && x.strides()[0] >= x.shape()[1]));
}
/// The distance between the rows of a matrix with has_full_rows(), in elements.
inline int64_t row_step(const Tensor& x) { return std::max(x.strides()[0], x.shape()[1]); }

/// True if x is a matrix from empty_padded(), or some rows of one, and has padding between its rows.
inline bool is_padded(const Tensor& x) {
  if (x.is_contiguous() || !has_full_rows(x)) return false;
  const int64_t step = row_step(x), end = x.offset() + x.shape()[0] * step;
  return step == padded_columns(x.shape()[1]) && x.offset() % step == 0 &&
         end * size_of(x.dtype()) <= x.storage()->bytes();
}
/// x w^T in memory with padded rows; without padding if w is the placeholder of a StoredMatrix (stored_matrix.h).
Tensor linear_padded(const Tensor& x, const Tensor& w);

}  // namespace lockstep
