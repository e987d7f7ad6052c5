#pragma once
// Products of bf16 by the instruction of AVX512-BF16. It multiplies two adjacent numbers of matrix a by two of matrix b
// and adds both products to an f32 lane: twice the arithmetic of f32 in the same time. Unlike gemm_tile.h and
// gemm_few.h, this file counts the inner dimension k in pairs:
//
//   packing   copies pairs into strips of rows or columns; if k is odd, a 0 completes the last pair
//   tile      sums the pairs of each block of k in order, then the blocks. The second product of a pair is added first.
//             Each product and each sum is rounded once, and results below 2^-126 are 0
//   few rows  sums in the same order, but reads b in place
//
// These functions are compiled for processors with AVX512-BF16, whatever the library is built for, and called only on
// such processors. They use intrinsics only, because other functions that they call are not compiled for such
// processors.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "tensor/cpu/gemm.h"
#include "tensor/half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define LOCKSTEP_PAIRS 1
#define LOCKSTEP_FOR_PAIRS gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

#if !defined(__clang__)  // g++ warns about its own intrinsics
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace lockstep::on_cpu {

inline constexpr int pair_lanes = 16, pair_rows = 14, pair_columns = 2 * pair_lanes;  ///< sizes of a tile
inline constexpr int few_pair_rows = 7;  ///< rows that are multiplied at a time by columns read in place

/// A mask with the `count` lowest bits set.
inline uint32_t low_bits(int64_t count) { return count >= 32 ? ~0u : (1u << std::max<int64_t>(count, 0)) - 1; }

/// Returns sum + a b: adds both products of each pair to the pair's lane of `sum`.
[[LOCKSTEP_FOR_PAIRS, gnu::always_inline]] inline __m512 add_pairs(__m512 sum, __m512i a, __m512i b) {
#if defined(__clang__)  // clang 16 and older crash on the intrinsic with a broadcast
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#endif
}
/// alpha * sum + beta * old; old is ignored if beta is 0.
[[LOCKSTEP_FOR_PAIRS, gnu::always_inline]] inline __m512 scaled_sum(__m512 sum, float alpha, float beta, __m512 old) {
  const __m512 v = _mm512_mul_ps(_mm512_set1_ps(alpha), sum);
  return beta == 0 ? v : _mm512_fmadd_ps(_mm512_set1_ps(beta), old, v);
}

/// Transposes a 16 x 16 square of pairs.
[[LOCKSTEP_FOR_PAIRS, gnu::always_inline]] inline void transpose_pairs(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 4
  for (int g = 0; g < 16; g += 4) {  // within each quarter of the registers
    const __m512i a = _mm512_unpacklo_epi32(r[g], r[g + 1]), b = _mm512_unpackhi_epi32(r[g], r[g + 1]),
                  c = _mm512_unpacklo_epi32(r[g + 2], r[g + 3]), d = _mm512_unpackhi_epi32(r[g + 2], r[g + 3]);
    t[g] = _mm512_unpacklo_epi64(a, c), t[g + 1] = _mm512_unpackhi_epi64(a, c);
    t[g + 2] = _mm512_unpacklo_epi64(b, d), t[g + 3] = _mm512_unpackhi_epi64(b, d);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {  // combine the quarters
    const __m512i a = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x44), b = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xee),
                  d = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x44),
                  e = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xee);
    r[c] = _mm512_shuffle_i32x4(a, d, 0x88), r[4 + c] = _mm512_shuffle_i32x4(a, d, 0xdd);
    r[8 + c] = _mm512_shuffle_i32x4(b, e, 0x88), r[12 + c] = _mm512_shuffle_i32x4(b, e, 0xdd);
  }
}

/// Reads 16 pairs (32 numbers) from each of 16 lines (rows or columns), which begin `apart` numbers apart. Lines after
/// the first `lines`, and numbers of a line after its first `numbers`, are not read and count as 0. Also prefetches
/// the numbers that lie `ahead` numbers further in memory than those read.
[[LOCKSTEP_FOR_PAIRS, gnu::always_inline]] inline void read_square(const BFloat16* in, int64_t apart, int64_t lines,
                                                                   int64_t numbers, int64_t ahead, __m512i (&r)[16]) {
  const __mmask32 there = low_bits(numbers);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i < lines) __builtin_prefetch(in + i * apart + ahead);
    r[i] = i >= lines      ? _mm512_setzero_si512()
           : numbers >= 32 ? _mm512_loadu_si512(in + i * apart)
                           : _mm512_maskz_loadu_epi16(there, in + i * apart);
  }
}

/// Reads 16 columns of two rows and combines the two numbers of each column to a pair. If `second` is false, the
/// second number is 0.
[[LOCKSTEP_FOR_PAIRS, gnu::always_inline]] inline __m512i read_rows(const BFloat16* in, int64_t row, bool second,
                                                                    __mmask16 columns) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(columns, in));
  if (!second) return low;
  return _mm512_or_si512(low,
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(columns, in + row)), 16));
}

/// Copies `count` lines (rows or columns) of `numbers` numbers each, as pairs, into strips of `width` lines, with zeros
/// for missing lines and numbers: out[line / width][pair][line % width]. In memory, neighbouring lines are `apart`
/// numbers apart, and neighbouring numbers of a line are `step` numbers apart; `apart` or `step` is 1. May write up to
/// one vector past the end of the last strip.
template <int width>
[[LOCKSTEP_FOR_PAIRS]] void pack_pairs(const BFloat16* in, int64_t apart, int64_t step, int64_t count, int64_t numbers,
                                       uint32_t* out) {
  const int64_t depth = (numbers + 1) / 2;
  if (step == 1) {
    for (int64_t i = 0; i < count; i += width)
      for (int64_t p = 0; p < depth; p += 16)
        for (int first = 0; first < width; first += 16) {
          __m512i square[16];
          const int64_t lines = count - i - first, left = numbers - 2 * p;
          const BFloat16* const from = in + (i + first) * apart + 2 * p;
          if (lines >= std::min(16, width) && left >= 32)
            read_square(from, apart, std::min(16, width), 32, 128, square);
          else read_square(from, apart, lines, left, 0, square);
          transpose_pairs(square);
          uint32_t* const to = out + i * depth + p * width + first;
          if (p + 16 <= depth) {
#pragma GCC unroll 16
            for (int c = 0; c < 16; ++c) _mm512_storeu_si512(to + c * width, square[c]);
          } else {
            for (int c = 0; c < depth - p; ++c) _mm512_storeu_si512(to + c * width, square[c]);
          }
        }
    return;
  }
  for (int64_t p = 0; p < depth; ++p) {
    const BFloat16* const from = in + 2 * p * step;
    for (int64_t i = 0; i < count; i += width)
      for (int first = 0; first < width; first += 16) {
        __builtin_prefetch(from + 8 * step + i + first), __builtin_prefetch(from + 9 * step + i + first);
        const int64_t lines = std::min<int64_t>(count - i, width) - first;
        // Stores at most as many lanes as the strip has lines: the memory after them holds values already written.
        _mm512_mask_storeu_epi32(out + i * depth + p * width + first, __mmask16(low_bits(std::min(16, width - first))),
                                 read_rows(from + i + first, step, 2 * p + 1 < numbers, __mmask16(low_bits(lines))));
      }
  }
}

/// c = alpha a b + beta c. c has pair_columns columns; its rows begin ldc numbers apart. a, b: strips of `depth` pairs.
template <int rows>
[[LOCKSTEP_FOR_PAIRS]] void pair_tile(int64_t depth, const uint32_t* a, const uint32_t* b, float alpha, float beta,
                                      float* c, int64_t ldc) {
  __m512 sum[rows][2];
#pragma GCC unroll 14
  for (int i = 0; i < rows; ++i) {
    sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    __builtin_prefetch(c + i * ldc, 1), __builtin_prefetch(c + i * ldc + 16, 1);
  }
  for (int64_t p = 0; p < depth; ++p, a += pair_rows, b += pair_columns) {
    __builtin_prefetch(a + 16 * pair_rows);
    __builtin_prefetch(b + 8 * pair_columns), __builtin_prefetch(b + 8 * pair_columns + 16);
    const __m512i left = _mm512_loadu_si512(b), right = _mm512_loadu_si512(b + 16);
#pragma GCC unroll 14
    for (int i = 0; i < rows; ++i) {
      const __m512i line = _mm512_set1_epi32(int(a[i]));
      sum[i][0] = add_pairs(sum[i][0], left, line), sum[i][1] = add_pairs(sum[i][1], right, line);
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      float* const to = c + i * ldc + 16 * v;
      _mm512_storeu_ps(to, scaled_sum(sum[i][v], alpha, beta, beta == 0 ? sum[i][v] : _mm512_loadu_ps(to)));
    }
}

/// The type of pair_tile().
using PairTile = void (*)(int64_t, const uint32_t*, const uint32_t*, float, float, float*, int64_t);
/// A table of the functions pair_tile<rows>() for 1 to pair_rows rows.
inline constexpr auto pair_tiles = []<int... rows>(std::integer_sequence<int, rows...>) {
  return std::array<PairTile, sizeof...(rows)>{&pair_tile<rows + 1>...};
}
(std::make_integer_sequence<int, pair_rows>());

/// c = alpha * x b + beta * c, where x has a few rows of k numbers, which are summed in blocks of `depth` pairs.
struct FewPairs {
  static constexpr int64_t unit = pair_columns;  ///< threads take multiples of this many columns

  int64_t k, depth;
  float alpha, beta;
  const uint32_t* x;
  int64_t x_row;
  MatrixView<BFloat16> b;
  float* c;
  int64_t c_row, c_col;

  /// True if b can be read without packing.
  static bool reads(const MatrixView<BFloat16>& b) { return b.row == 1 || b.col == 1; }

  /// Computes columns [j0, j1) of `rows` rows of c. For each `unit` columns of b, walks along all rows, few_pair_rows
  /// at a time, so that these columns are read from the cache again.
  void operator()(int64_t rows, int64_t j0, int64_t j1) const {
    using Run = void (FewPairs::*)(int64_t, int64_t) const;
    static constexpr auto table = []<int... n>(std::integer_sequence<int, n...>) {
      return std::array<Run, sizeof...(n)>{&FewPairs::columns<n + 1>...};
    }
    (std::make_integer_sequence<int, few_pair_rows>());
    for (int64_t j = j0; j < j1; j += unit)
      for (int64_t i = 0; i < rows; i += few_pair_rows) {
        FewPairs some = *this;
        some.x += i * x_row, some.c += i * c_row;
        (some.*table[size_t(std::min<int64_t>(few_pair_rows, rows - i) - 1)])(j, std::min(unit, j1 - j));
      }
  }

 private:
  /// Computes columns [j, j + count) of the first `rows` rows; count <= pair_columns.
  template <int rows> [[LOCKSTEP_FOR_PAIRS]] void columns(int64_t j, int64_t count) const {
    const int64_t pairs = (k + 1) / 2;
    __m512 total[rows][2];
    for (int64_t p0 = 0; p0 < pairs; p0 += depth) {
      const int64_t end = std::min(pairs, p0 + depth);
      __m512 sum[rows][2];
#pragma GCC unroll 7
      for (int i = 0; i < rows; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
      if (b.row == 1) {
        int64_t p = p0;
        if (count == 32)
          for (; p + 16 <= end && 2 * p + 32 <= k; p += 16) squares<rows>(j, p, sum);
        if (p < end) {
          __m512 rest[rows][2];  // a copy, so that `sum` stays in registers
          std::memcpy(rest, sum, sizeof sum);
          for (; p < end; p += 16) part<rows>(j, count, p, end, rest);
          std::memcpy(sum, rest, sizeof sum);
        }
      } else {
        const __mmask16 left = __mmask16(low_bits(count)), right = __mmask16(low_bits(count - 16));
        const BFloat16* from = b.data + j + 2 * p0 * b.row;
        for (int64_t p = p0; p < end; ++p, from += 2 * b.row) {
          __builtin_prefetch(from + 8 * b.row), __builtin_prefetch(from + 9 * b.row);
          const __m512i l = read_rows(from, b.row, 2 * p + 1 < k, left),
                        r = read_rows(from + 16, b.row, 2 * p + 1 < k, right);
#pragma GCC unroll 7
          for (int i = 0; i < rows; ++i) {
            const __m512i number = _mm512_set1_epi32(int(x[i * x_row + p]));
            sum[i][0] = add_pairs(sum[i][0], l, number), sum[i][1] = add_pairs(sum[i][1], r, number);
          }
        }
      }
#pragma GCC unroll 7
      for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          if (p0 == 0 && beta != 0) total[i][v] = read_c(i, j + 16 * v, count - 16 * v);
          total[i][v] = scaled_sum(sum[i][v], alpha, p0 == 0 ? beta : 1, total[i][v]);
        }
    }
#pragma GCC unroll 7
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        float* const to = c + i * c_row + (j + 16 * v) * c_col;
        if (c_col == 1) {
          _mm512_mask_storeu_ps(to, __mmask16(low_bits(count - 16 * v)), total[i][v]);
        } else {
          alignas(64) float lanes[16];
          _mm512_store_ps(lanes, total[i][v]);
          for (int l = 0; l < std::min<int64_t>(16, count - 16 * v); ++l) to[l * c_col] = lanes[l];
        }
      }
  }

  /// Multiplies pairs [p, p + 16) of x by those of columns [j, j + 32) of b and adds the products to `sum`.
  template <int rows>
  [[LOCKSTEP_FOR_PAIRS, gnu::always_inline]] void squares(int64_t j, int64_t p, __m512 (&sum)[rows][2]) const {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      __m512i square[16];
      read_square(b.data + (j + 16 * v) * b.col + 2 * p, b.col, 16, 32, 32 * b.col, square);
      transpose_pairs(square);
#pragma GCC unroll 16
      for (int q = 0; q < 16; ++q)
#pragma GCC unroll 7
        for (int i = 0; i < rows; ++i)
          sum[i][v] = add_pairs(sum[i][v], square[q], _mm512_set1_epi32(int(x[i * x_row + p + q])));
    }
  }

  /// Multiplies pairs [p, end) of x, at most 16, by those of columns [j, j + count) of b. Adds the products to `sum`.
  template <int rows>
  [[LOCKSTEP_FOR_PAIRS]] void part(int64_t j, int64_t count, int64_t p, int64_t end, __m512 (&sum)[rows][2]) const {
    for (int v = 0; 16 * v < count; ++v) {
      __m512i square[16];
      read_square(b.data + (j + 16 * v) * b.col + 2 * p, b.col, count - 16 * v, k - 2 * p, 0, square);
      transpose_pairs(square);
      for (int64_t q = p; q < std::min(end, p + 16); ++q)
        for (int i = 0; i < rows; ++i)
          sum[i][v] = add_pairs(sum[i][v], square[q - p], _mm512_set1_epi32(int(x[i * x_row + q])));
    }
  }

  [[LOCKSTEP_FOR_PAIRS]] __m512 read_c(int64_t i, int64_t j, int64_t count) const {
    alignas(64) float lanes[16] = {};
    for (int l = 0; l < std::min<int64_t>(16, count); ++l) lanes[l] = c[i * c_row + (j + l) * c_col];
    return _mm512_load_ps(lanes);
  }
};

}  // namespace lockstep::on_cpu

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
