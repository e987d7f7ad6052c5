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
  // A row of a lies in the four lanes of its group, a column of b likewise.
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

/// Four 8 x 8 matrices of 16-bit numbers out of shared memory: lane 8 i + r gives where row r of the i-th begins, 16
/// bytes aligned. Lane 4 g + t gets of each the columns 2t and 2t + 1 of row g; turned: the same of its transpose.
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

/// Begins to copy 4 or 16 bytes to shared memory; zeros where there is nothing. They have come when this thread has
/// waited, and are everybody's after a barrier.
template <int bytes> __device__ inline void copy_async(void* to, const void* from, bool there) {
  static_assert(bytes == 4 || bytes == 16);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto at = unsigned(__cvta_generic_to_shared(to));
  const int read = there ? bytes : 0;
  if constexpr (bytes == 16)  // past L1
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(read) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(read) : "memory");
#elif !defined(__CUDACC__)
  simt::copy_async<bytes>(to, there ? from : nullptr);
#endif
}
/// For all that this thread began.
__device__ inline void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#elif !defined(__CUDACC__)
  simt::wait_for_copies();
#endif
}

/// A tile of 16-bit numbers in shared memory, for a and b. `depth` is the width of a row in steps of 16; rows are
/// padded by 16 bytes, so that eight rows of a matrix lie in 32 banks.
template <int depth> struct RowTile {
  static constexpr int line = 8 * depth + 4;  // words
  uint32_t* words;

  /// Row r of one of four matrices, which follow each other down the rows first, or along them.
  __device__ const uint32_t* place(int row, int column, bool down) const {
    const int i = threadIdx.x % warp / 8, far = i / 2 * 8, near = i % 2 * 8;
    return words + (row + (down ? near : far) + int(threadIdx.x % 8)) * line + (column + (down ? far : near)) / 2;
  }
  /// The 16 x 16 from (row, column) on as an a; turned: its transpose.
  __device__ void left(int row, int column, uint32_t (&a)[4]) const {
    load_matrices<false>(place(row, column, true), a[0], a[1], a[2], a[3]);
  }
  __device__ void left_turned(int row, int column, uint32_t (&a)[4]) const {
    load_matrices<true>(place(row, column, false), a[0], a[1], a[2], a[3]);
  }
  /// The same as two b: its left and right half; turned: those of its transpose.
  __device__ void right(int row, int column, uint32_t (&b)[2][2]) const {
    load_matrices<true>(place(row, column, true), b[0][0], b[0][1], b[1][0], b[1][1]);
  }
  __device__ void right_turned(int row, int column, uint32_t (&b)[2][2]) const {
    load_matrices<false>(place(row, column, false), b[0][0], b[0][1], b[1][0], b[1][1]);
  }
  /// Begins to fill `size` rows with those from `from` on, `stride` apart; the first `rows` of them are there, and of
  /// each `width` numbers, which 8 divides.
  template <int threads, int size, class T>
  __device__ void fill(const T* from, int64_t stride, int64_t rows, int64_t width) const {
    int first = threadIdx.x;
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(first));  // else all addresses stay in registers between two calls
#endif
    for (int n = first; n < size * 2 * depth; n += threads) {
      const int row = n / (2 * depth), column = n % (2 * depth) * 8;
      const bool there = row < rows && column < width;
      copy_async<16>(words + row * line + column / 2, there ? from + row * stride + column : from, there);
    }
  }
};

}  // namespace lockstep::on_cuda
