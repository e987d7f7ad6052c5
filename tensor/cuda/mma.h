#pragma once
// Tensor cores: products of small matrices that the lanes of a warp hold together, f16 or bf16 with f32 sums (sm_80 and
// later).
//
//   c (16 x 8) += a (16 x 16) b (16 x 8)        lane = 4 g + t
//
//   a: words of two neighbours along k: rows g, g + 8, then the same 8 columns on:    a[0] (g, 2t)  a[1] (g + 8, 2t)
//                                                                                     a[2] (g, 2t + 8)  a[3] (g + 8, 2t
//                                                                                     + 8)
//   b: words of two neighbours along k, column g:   b[0] (2t, g)  b[1] (2t + 8, g)
//   c: c[0] c[1] (g, 2t and 2t + 1), c[2] c[3] (g + 8, the same). Two c side by side are an a, once rounded and packed.
#include "tensor/cuda/warp.h"

namespace lockstep::on_cuda {

// Kernels leave at once where there are none: compilers then skip what nobody calls (fits_mma() asks for the device).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool has_tensor_cores = false;
#else
constexpr bool has_tensor_cores = true;
#endif

/// Two numbers in one word, the first in the lower half.
template <class T> __device__ inline uint32_t pack(float low, float high) {
  return uint32_t(T(low).bits) | uint32_t(T(high).bits) << 16;
}
/// The number in the lowest 16 bits.
template <class T> __device__ inline float number(uint64_t bits) {
  T x;
  x.bits = uint16_t(bits);
  return float(x);
}

template <class T> __device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, Half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#elif !defined(__CUDACC__)
  // The same by shuffles. A row of a lies in the four lanes of its group, a column of b likewise.
  const auto both = [](uint32_t low, uint32_t high) { return uint64_t(high) << 32 | low; };
  const uint64_t upper_row = both(a[0], a[2]), lower_row = both(a[1], a[3]), column = both(b[0], b[1]);
  const int lane = threadIdx.x % warp, g = lane / 4, t = lane % 4;
  for (int s = 0; s < 4; ++s) {
    const uint64_t x[2] = {__shfl_sync(whole_warp, upper_row, 4 * g + s),
                           __shfl_sync(whole_warp, lower_row, 4 * g + s)};
    for (int e = 0; e < 2; ++e) {
      const uint64_t y = __shfl_sync(whole_warp, column, 4 * (2 * t + e) + s);
      for (int k = 0; k < 4; ++k) {
        for (int row = 0; row < 2; ++row) c[2 * row + e] += number<T>(x[row] >> 16 * k) * number<T>(y >> 16 * k);
      }
    }
  }
#endif
}

// --- tiles of 16-bit numbers in shared memory, for a and b ---
// Both kinds are made of words; `depth` is the width of a row in steps of 16. Rows are padded so that the 32 words that
// a warp reads at a time lie in 32 banks.

/// Rows as they are: a word is two neighbours of a row. For a, and for b as the transpose of a matrix.
template <int depth> struct RowTile {
  static constexpr int line = 8 * depth + 4;  // words
  uint32_t* words;

  /// Rows `row` to row + 15, columns 16 k on, as an a.
  __device__ void left(int row, int k, uint32_t (&a)[4]) const {
    const int lane = threadIdx.x % warp, at = (row + lane / 4) * line + 8 * k + lane % 4;
    a[0] = words[at];
    a[1] = words[at + 8 * line];
    a[2] = words[at + 4];
    a[3] = words[at + 8 * line + 4];
  }
  /// The same of 8 rows, transposed: column g of b is row + g.
  __device__ void right(int row, int k, uint32_t (&b)[2]) const {
    const int lane = threadIdx.x % warp, at = (row + lane / 4) * line + 8 * k + lane % 4;
    b[0] = words[at];
    b[1] = words[at + 4];
  }
};

/// Pairs of rows: word (n, column) is that column of rows 2 n and 2 n + 1. For b, whose k goes along the rows.
template <int depth> struct PairTile {
  static constexpr int line = 16 * depth + 8;  // words
  uint32_t* words;

  /// Rows 16 k to 16 k + 15, columns `column` to column + 7.
  __device__ void right(int k, int column, uint32_t (&b)[2]) const {
    const int lane = threadIdx.x % warp, at = (8 * k + lane % 4) * line + column + lane / 4;
    b[0] = words[at];
    b[1] = words[at + 4 * line];
  }
};

struct alignas(16) FourWords {
  uint32_t v[4];
};

/// Eight numbers from column on of a row of `width`, which 8 divides; zeros where there is none.
template <class T> __device__ inline FourWords load_eight(const T* row, bool there, int column, int64_t width) {
  return there && column < width ? *reinterpret_cast<const FourWords*>(row + column) : FourWords{};
}

/// Fills tiles with `size` rows that begin at `from`, `stride` apart, the first `rows` of them there. Either may be
/// null.
template <int threads, int size, int depth, class T>
__device__ inline void load_tiles(const T* from, int64_t stride, int64_t rows, int64_t width, RowTile<depth>* plain,
                                  PairTile<depth>* pairs) {
  for (int n = threadIdx.x; n < size / 2 * 2 * depth; n += threads) {
    const int pair = n / (2 * depth), column = n % (2 * depth) * 8;
    const FourWords x = load_eight(from + 2 * pair * stride, 2 * pair < rows, column, width);
    const FourWords y = load_eight(from + (2 * pair + 1) * stride, 2 * pair + 1 < rows, column, width);
    if (plain) {
      *reinterpret_cast<FourWords*>(plain->words + 2 * pair * plain->line + column / 2) = x;
      *reinterpret_cast<FourWords*>(plain->words + (2 * pair + 1) * plain->line + column / 2) = y;
    }
    if (pairs) {
      FourWords low, high;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t even = (x.v[i] & 0xffffu) | y.v[i] << 16, odd = x.v[i] >> 16 | (y.v[i] & 0xffff0000u);
        (i < 2 ? low : high).v[i % 2 * 2] = even;
        (i < 2 ? low : high).v[i % 2 * 2 + 1] = odd;
      }
      uint32_t* const to = pairs->words + pair * pairs->line + column;
      *reinterpret_cast<FourWords*>(to) = low;
      *reinterpret_cast<FourWords*>(to + 4) = high;
    }
  }
}

}  // namespace lockstep::on_cuda
