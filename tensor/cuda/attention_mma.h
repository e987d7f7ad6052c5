#pragma once
// Shared by attention forward and backward on tensor cores: products of tiles by a warp, for f16 and bf16. Scores,
// softmax and all sums are f32; weights and their gradients are rounded to 16 bits before products that read them.
//
// A warp owns 16 rows (queries in the forward pass, keys in the backward pass). The lanes that receive a score from
// mma() also hold this element of the next product's left operand (mma.h), so weights stay in registers. The next tile
// is copied to shared memory while the current tile is multiplied. The kernels are bound by tensor cores and by shared
// memory, with about two reads of 512 bytes for three mma instructions.
#include "tensor/cuda/attention_tile.h"
#include "tensor/cuda/mma.h"

namespace lockstep::on_cuda {

/// The position of a thread: its group g of 4 lanes, its place t in the group (lane = 4 g + t), and the first row of
/// its warp in the tile.
struct Lane {
  int g = int(threadIdx.x % warp) / 4, t = int(threadIdx.x % warp) % 4, row = int(threadIdx.x / warp) * 16;
  /// row_of(e): the row that element e of an accumulator (c in mma.h) has in the block's tile. column_of(n, e): the
  /// column of element e of accumulator n, for accumulators that lie side by side and are 8 columns wide.
  __device__ int row_of(int e) const { return row + g + e / 2 * 8; }
  __device__ int column_of(int n, int e) const { return 8 * n + 2 * t + e % 2; }
};

/// Returns the query and the key of score number e, counted over all scores that the lane holds. Rows are queries and
/// columns are keys or, if `turned`, the other way round. Not a lambda, because nvcc 13.0 fails to compile one here.
struct Scores {
  Lane lane;
  int64_t i0, j0;
  bool turned = false;
  __device__ QueryKey operator()(int e) const {
    const int row = lane.row_of(e % 4), column = lane.column_of(e / 4, e % 4);
    return turned ? QueryKey{i0 + column, j0 + row} : QueryKey{i0 + row, j0 + column};
  }
};

/// Rounds the lane's elements of two neighbouring 16 x 8 accumulators and packs them into a left operand of mma().
template <class T> __device__ inline void as_left(const float (&low)[4], const float (&high)[4], uint32_t (&a)[4]) {
  a[0] = pack<T>(low[0], low[1]);
  a[1] = pack<T>(low[2], low[3]);
  a[2] = pack<T>(high[0], high[1]);
  a[3] = pack<T>(high[2], high[3]);
}

/// Returns a tile of `rows` rows in the shared memory that begins at `words`, and moves `words` to the tile's end.
template <class Z, int rows> __device__ inline Z take(uint32_t*& words) {
  const Z tile{words};
  words += rows * Z::line;
  return tile;
}
/// Returns tile `number` of consecutive tiles in memory, of `rows` rows each. `first` is tile 0.
template <int rows, int depth> __device__ inline RowTile<depth> at(const RowTile<depth>& first, int number) {
  return {first.words + number * (rows * RowTile<depth>::line)};
}

/// score[n] += the warp's 16 rows of `left` times the transpose of rows 8 n to 8 n + 7 of `right`.
template <class T, int depth, int count>
__device__ inline void multiply(const RowTile<depth>& left, const RowTile<depth>& right, float (&score)[count][4]) {
#pragma unroll 2
  for (int k = 0; k < depth; ++k) {
    uint32_t a[4], b[2][2];
    left.left(threadIdx.x / warp * 16, 16 * k, a);
#pragma unroll
    for (int n = 0; n < count; n += 2) {
      right.right_turned(8 * n, 16 * k, b);
      mma<T>(score[n], a, b[0]);
      mma<T>(score[n + 1], a, b[1]);
    }
  }
}

/// sum[d] += `a` times the 16 x 8 part of `values` that begins at row `row` and column `column` + 8 d.
template <class T, int depth, int count>
__device__ inline void multiply_rows(const uint32_t (&a)[4], const RowTile<depth>& values, int row, int column,
                                     float (&sum)[count][4]) {
#pragma unroll
  for (int d = 0; d < count; d += 2) {
    uint32_t b[2][2];
    values.right(row, column + 8 * d, b);
    mma<T>(sum[d], a, b[0]);
    mma<T>(sum[d + 1], a, b[1]);
  }
}

/// sum += `weights` (a matrix of 16 rows and 8 * count columns) times `values`.
template <class T, int depth, int count>
__device__ inline void accumulate(const float (&weights)[count][4], const RowTile<depth>& values,
                                  float (&sum)[2 * depth][4]) {
#pragma unroll
  for (int k = 0; k < count / 2; ++k) {
    uint32_t a[4];
    as_left<T>(weights[2 * k], weights[2 * k + 1], a);
    multiply_rows<T>(a, values, 16 * k, 0, sum);
  }
}

/// Writes a lane's part of row `row` (sum times `low`) and of row `row` + 8 (sum times `high`), from `column` on.
template <class T, int count>
__device__ inline void store_rows(const Heads<T>& out, int64_t b, int64_t h, int64_t row, int64_t rows, int column,
                                  int64_t width, const float (&sum)[count][4], float low, float high) {
#pragma unroll
  for (int e = 0; e < 4; e += 2, row += 8) {
    if (row >= rows) continue;
    const float factor = e == 0 ? low : high;
    T* const to = out.row(b, h, row);
#pragma unroll
    for (int d = 0; d < count; ++d) {
      if (column + 8 * d < width)
        *reinterpret_cast<uint32_t*>(to + Lane().column_of(d, 0) + column) =
            pack<T>(sum[d][e] * factor, sum[d][e + 1] * factor);
    }
  }
}

/// Calls fn.template operator()<T, depth, sparse>() for tensors that pass fits_mma(). depth is 4 for heads of up to 64
/// elements, else 8.
template <class Fn> void with_depth(const AttentionPlan& plan, const Tensor& q, Fn&& fn) {
  dispatch<Half, BFloat16>(q.dtype(), "attention", [&]<class T> {
    with_layout(plan, [&]<bool sparse> {
      if (q.shape()[3] <= 64) fn.template operator()<T, 4, sparse>();
      else fn.template operator()<T, 8, sparse>();
    });
  });
}

/// Number of tiles, of `size` rows each, that are needed to cover `rows` rows.
inline int64_t tiles_of(int64_t rows, int size) { return (rows + size - 1) / size; }
/// Bytes of shared memory of `rows` rows of a RowTile.
template <int depth> size_t bytes_of(int rows) { return sizeof(uint32_t) * size_t(rows * RowTile<depth>::line); }

}  // namespace lockstep::on_cuda
