#pragma once
// Tensor cores (sm_80 and later): products of small f16 or bf16 matrices, summed in f32. The lanes of a warp hold each
// matrix together. With lane = 4 g + t, c (16 x 8) += a (16 x 16) b (16 x 8) places the elements (row, column) so:
//
//   a   a word holds two neighbours along k (columns)   a[0] (g, 2t)       a[1] (g + 8, 2t)
//                                                       a[2] (g, 2t + 8)   a[3] (g + 8, 2t + 8)
//   b   a word holds two neighbours along k (rows)      b[0] (2t, g)       b[1] (2t + 8, g)
//   c   one f32 each                                    c[0] (g, 2t)       c[1] (g, 2t + 1)
//                                                       c[2] (g + 8, 2t)   c[3] (g + 8, 2t + 1)
//
// Two such c side by side (16 x 16), rounded and packed, have the layout of an operand a.
#include "tensor/cuda/async_copy.h"

namespace lockstep::on_cuda {

/// True if this architecture has tensor cores for f16 and bf16. Kernels return at once where it is false, so the
/// compiler drops their bodies; fits_mma() checks the device.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool has_tensor_cores = false;
#else
constexpr bool has_tensor_cores = true;
#endif

/// Packs two numbers, rounded to T, into one word; `low` goes into the lower half.
template <class T> __device__ inline uint32_t pack(float low, float high) {
  return uint32_t(T(low).bits) | uint32_t(T(high).bits) << 16;
}
/// The T whose bits are the lowest 16 of `bits`, as f32.
template <class T> __device__ inline float number(uint64_t bits) {
  T x;
  x.bits = uint16_t(bits);
  return float(x);
}

/// c += a b (m16n8k16); all lanes of the warp call it.
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
  // The four lanes 4 g to 4 g + 3 together hold rows g and g + 8 of a, and column g of b.
  const auto both = [](uint32_t low, uint32_t high) { return uint64_t(high) << 32 | low; };
  const uint64_t mine[3] = {both(a[0], a[2]), both(a[1], a[3]), both(b[0], b[1])};
  uint64_t all[warp][3];
  simt::warp_gather(mine, 3, all[0]);
  const int lane = threadIdx.x % warp, g = lane / 4, t = lane % 4;
  for (int s = 0; s < 4; ++s) {
    for (int e = 0; e < 4; ++e) {
      const uint64_t x = all[4 * g + s][e / 2], y = all[4 * (2 * t + e % 2) + s][2];
      for (int k = 0; k < 64; k += 16) c[e] += number<T>(x >> k) * number<T>(y >> k);
    }
  }
#endif
}

/// Loads four 8 x 8 matrices of 16-bit numbers from shared memory (ldmatrix): lane 8 i + r passes the 16-byte aligned
/// address of row r of matrix i. Lane 4 g + t receives columns 2t and 2t + 1 of row g of each matrix; if `turned`, of
/// each transposed matrix.
template <bool turned>
__device__ inline void load_matrices(const uint32_t* row, uint32_t& m0, uint32_t& m1, uint32_t& m2, uint32_t& m3) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto at = unsigned(__cvta_generic_to_shared(row));
  if constexpr (turned) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m0), "=r"(m1), "=r"(m2), "=r"(m3)
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m0), "=r"(m1), "=r"(m2), "=r"(m3)
                 : "r"(at)
                 : "memory");
  }
#elif !defined(__CUDACC__)
  const uint64_t mine = reinterpret_cast<uintptr_t>(row);
  uint64_t all[warp];
  simt::warp_gather(&mine, 1, all);
  const int lane = threadIdx.x % warp, g = lane / 4, t = lane % 4;
  const auto word = [&](int of, int n) { return reinterpret_cast<const uint32_t*>(all[of])[n]; };
  const auto half = [&](int of, int n) { return word(of, n / 2) >> n % 2 * 16 & 0xffffu; };
  uint32_t* const to[4] = {&m0, &m1, &m2, &m3};
  for (int i = 0; i < 4; ++i)
    *to[i] = turned ? half(8 * i + 2 * t, g) | half(8 * i + 2 * t + 1, g) << 16 : word(8 * i + g, t);
#endif
}

/// A tile of 16-bit numbers in shared memory, an operand of mma(). Its rows have 16 * depth numbers and are padded by
/// 16 bytes, so the eight rows of a matrix fall into different banks.
template <int depth> struct RowTile {
  static constexpr int line = 8 * depth + 4;  // stride of the rows, in words
  uint32_t* words;

  /// The address that this lane passes to load_matrices() for the 16 x 16 part at (row, column). If `down`, the second
  /// of its four 8 x 8 matrices is the one below the first, else the one to the right of it.
  __device__ const uint32_t* place(int row, int column, bool down) const {
    const int i = threadIdx.x % warp / 8, far = i / 2 * 8, near = i % 2 * 8;
    return words + (row + (down ? near : far) + int(threadIdx.x % 8)) * line + (column + (down ? far : near)) / 2;
  }
  /// Loads the 16 x 16 part that starts at (row, column) as an operand a; left_turned() loads its transpose.
  __device__ void left(int row, int column, uint32_t (&a)[4]) const {
    load_matrices<false>(place(row, column, true), a[0], a[1], a[2], a[3]);
  }
  __device__ void left_turned(int row, int column, uint32_t (&a)[4]) const {
    load_matrices<true>(place(row, column, false), a[0], a[1], a[2], a[3]);
  }
  /// Loads the 16 x 16 part that starts at (row, column) as two operands b: the part's columns 0 to 7 and 8 to 15.
  /// right_turned() loads the transpose of the part in the same way.
  __device__ void right(int row, int column, uint32_t (&b)[2][2]) const {
    load_matrices<true>(place(row, column, true), b[0][0], b[0][1], b[1][0], b[1][1]);
  }
  __device__ void right_turned(int row, int column, uint32_t (&b)[2][2]) const {
    load_matrices<false>(place(row, column, false), b[0][0], b[0][1], b[1][0], b[1][1]);
  }
  /// Starts copying `size` rows of 16 * depth numbers, `stride` apart, into the tile. Only the first `rows` rows and
  /// `width` numbers of each exist; the rest becomes zeros. 8 must divide `width`.
  template <int threads, int size, class T>
  __device__ void fill(const T* from, int64_t stride, int64_t rows, int64_t width) const {
    int first = threadIdx.x;
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(first));  // else the compiler keeps all addresses in registers between two calls
#endif
    for (int n = first; n < size * 2 * depth; n += threads) {
      const int row = n / (2 * depth), column = n % (2 * depth) * 8;
      const bool there = row < rows && column < width;
      copy_async<16>(words + row * line + column / 2, there ? from + row * stride + column : from, there);
    }
  }
};

}  // namespace lockstep::on_cuda
