#pragma once
// The product of a few rows with a matrix b, as in generating text token by token. It takes as long as reading b from
// memory, so b is read once and never packed. How b is read depends on its layout:
//
//   columns of b are contiguous (as in nn::Linear's weights)    squares of b are transposed in registers
//   rows of b are contiguous                                    the rows are read in place
//
// The sum over k has the same order as in gemm_tile.h: each block of k is summed in order, then the blocks are added.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "tensor/cpu/gemm.h"
#include "tensor/cpu/gemm_tile.h"

namespace lockstep::on_cpu {

inline constexpr int few_rows = 7;  ///< rows that are multiplied by a square of b at a time
/// The largest number of rows of x for which b is read without packing. With more rows, packing b saves time.
inline constexpr int unpacked_rows = 2 * few_rows;

/// c = alpha * x b + beta * c, where x has few rows of k contiguous numbers. The rows of x are x_row apart.
template <class T, class In> struct FewRows {
  static constexpr int w = lanes<T>, unit = 2 * w;  ///< threads take multiples of this many columns

  int64_t k, depth;
  T alpha, beta;
  const T* x;
  int64_t x_row;
  MatrixView<In> b;
  T* c;
  int64_t c_row, c_col;

  /// True if b can be read without packing.
  static bool reads(const MatrixView<In>& b) { return b.row == 1 || b.col == 1; }

  /// Computes columns [j0, j1) of all rows. It takes few_rows rows at a time while the columns of b are in cache.
  void operator()(int64_t rows, int64_t j0, int64_t j1) const {
    if (rows > few_rows) {
      FewRows rest = *this;
      rest.x += few_rows * x_row, rest.c += few_rows * c_row;
      for (int64_t j = j0; j < j1; j += unit)
        (*this)(few_rows, j, std::min(j1, j + unit)), rest(rows - few_rows, j, std::min(j1, j + unit));
      return;
    }
    using Run = void (FewRows::*)(int64_t, int64_t) const;
    static constexpr auto table = []<int... n>(std::integer_sequence<int, n...>) {
      return std::array<Run, sizeof...(n)>{&FewRows::template columns<n + 1>...};
    }
    (std::make_integer_sequence<int, few_rows>());
    (this->*table[size_t(rows - 1)])(j0, j1);
  }

 private:
  template <int rows> void columns(int64_t j0, int64_t j1) const {
    if (b.row == 1 && b.col != 1) {
      const bool lone = (j1 - j0) * rows <= 8 && k >= 8 * depth;
      for (int64_t j = j0; j < j1; j += lone ? 1 : w)
        lone ? dots<rows>(j) : squares<rows>(j, int(std::min<int64_t>(w, j1 - j)));
      return;
    }
    constexpr int vectors = std::max(1, std::min(8, (vector_registers - 2) / (rows + 1)));
    int64_t j = j0;
    for (; j + vectors * w <= j1; j += vectors * w) lines<rows, vectors>(j, vectors * w);
    for (; j < j1; j += w) lines<rows, 1>(j, int(std::min<int64_t>(w, j1 - j)));
  }

  /// Computes columns [j, j + count) of c, when the columns of b are contiguous.
  template <int rows> void squares(int64_t j, int count) const {
    Vector<T> total[rows][1];
    const In* const first = b.data + j * b.col;
    for (int64_t p0 = 0; p0 < k; p0 += depth) {
      const int64_t end = std::min(k, p0 + depth);
      Vector<T> sum[rows] = {};
      int64_t p = p0;
      for (; count == w && p + w <= end; p += w) {
        Vector<T> square[w];
#pragma GCC unroll 16
        for (int r = 0; r < w; ++r) {
          __builtin_prefetch(first + (w + r) * b.col + p, 0, 2);  // the next columns, to hide the latency
          square[r] = read<T>(first + r * b.col + p, w);
        }
        transpose<T>(square);
#pragma GCC unroll 7
        for (int i = 0; i < rows; ++i) keep_in_register(sum[i]);  // else g++ may split the only chain of additions
#pragma GCC unroll 16
        for (int q = 0; q < w; ++q)
#pragma GCC unroll 7
          for (int i = 0; i < rows; ++i) sum[i] += x[i * x_row + p + q] * square[q];
      }
      for (; p < end; p += w) part<rows>(first, count, p, std::min(end, p + w), sum);
      for (int i = 0; i < rows; ++i) settle(sum[i], i, j, count, p0 == 0, total[i][0]);
    }
    put<rows, 1>(total, j, count);
  }

  /// Computes one column of c, when there are too few columns for a vector. Several blocks of k are summed at the same
  /// time, because their sums do not depend on each other.
  template <int rows> void dots(int64_t j) const {
    constexpr int wide = 8;
    for (int i = 0; i < rows; ++i) {
      const T* const left = x + i * x_row;
      const In* const right = b.data + j * b.col;
      T& to = c[i * c_row + j * c_col];
      T total = beta == 0 ? T(0) : to;
      for (int64_t p0 = 0; p0 < k; p0 += wide * depth) {
        T sum[wide] = {};
        const int blocks = int(std::min<int64_t>(wide, (k - p0 + depth - 1) / depth));
        const bool full = p0 + wide * depth <= k;
        for (int64_t p = p0; full && p < p0 + depth; ++p)
#pragma GCC unroll 8
          for (int q = 0; q < wide; ++q) {
            keep_in_register(sum[q]);  // else g++ vectorises the products and rounds them before it adds them
            sum[q] += left[p + q * depth] * T(right[p + q * depth]);
          }
        for (int q = 0; !full && q < blocks; ++q)
          for (int64_t p = p0 + q * depth; p < std::min(k, p0 + (q + 1) * depth); ++p) {
            keep_in_register(sum[q]);
            sum[q] += left[p] * T(right[p]);
          }
        for (int q = 0; q < blocks; ++q) total = add_scaled<T>(sum[q], alpha, p0 + q == 0 ? beta : T(1), total);
      }
      to = total;
    }
  }

  /// Multiplies numbers [p, end) of the rows of x by those of `count` columns of b, the first of which begins at
  /// `from`, and adds the products to `sum`. count and end - p are at most w.
  template <int rows> void part(const In* from, int count, int64_t p, int64_t end, Vector<T>* sum) const {
    const int64_t start = std::max<int64_t>(0, std::min(p, k - w));  // a whole square can be read from here
    Vector<T> square[w];
    for (int r = 0; r < w; ++r)
      square[r] = read<T>(from + std::min(r, count - 1) * b.col + start, int(std::min<int64_t>(k, w)));
    transpose<T>(square);
    for (int64_t q = p - start; q < end - start; ++q)
      for (int i = 0; i < rows; ++i) {
        keep_in_register(sum[i]);
        sum[i] += x[i * x_row + start + q] * square[q];
      }
  }

  /// Computes columns [j, j + count) of c, when the rows of b are contiguous.
  template <int rows, int vectors> void lines(int64_t j, int count) const {
    Vector<T> total[rows][vectors];
    const In* from = b.data + j * b.col;
    for (int64_t p0 = 0; p0 < k; p0 += depth) {
      const int64_t end = std::min(k, p0 + depth);
      Vector<T> sum[rows][vectors] = {};
      for (int64_t p = p0; p < end; ++p, from += b.row) {
        Vector<T> line[vectors];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
          __builtin_prefetch(from + 8 * b.row + v * w);
          line[v] = read<T>(from + v * w, vectors == 1 ? count : w);
        }
#pragma GCC unroll 7
        for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
          for (int v = 0; v < vectors; ++v) {
            if constexpr (rows * vectors == 1) keep_in_register(sum[i][v]);
            sum[i][v] += x[i * x_row + p] * line[v];
          }
      }
      for (int i = 0; i < rows; ++i)
        for (int v = 0; v < vectors; ++v) settle(sum[i][v], i, j + v * w, count - v * w, p0 == 0, total[i][v]);
    }
    put<rows, vectors>(total, j, count);
  }

  /// Adds alpha times the sum of one block of k to `total`. The first block is added to beta * c.
  [[gnu::always_inline]] void settle(Vector<T> sum, int i, int64_t j, int count, bool first, Vector<T>& total) const {
    if (first && beta != 0) {
      total = Vector<T>{};
      const T* const from = c + i * c_row + j * c_col;
      for (int l = 0; l < std::min(count, w); ++l) total[l] = from[l * c_col];
    }
    total = add_scaled<T>(sum, alpha, first ? beta : T(1), total);
  }

  template <int rows, int vectors> void put(const Vector<T> (&total)[rows][vectors], int64_t j, int count) const {
    for (int i = 0; i < rows; ++i)
      for (int v = 0; v < vectors; ++v) {
        T* const to = c + i * c_row + (j + v * w) * c_col;
        if (c_col == 1 && (v + 1) * w <= count) std::memcpy(to, &total[i][v], sizeof total[i][v]);
        else
          for (int l = 0; l < std::min(count - v * w, w); ++l) to[l * c_col] = total[i][v][l];
      }
  }
};

}  // namespace lockstep::on_cpu
