#pragma once
// Hopper's tensor cores (sm_90a only): asynchronous products that the four warps of a warpgroup issue together. f16 or
// bf16 with f32 sums.
//
//   c (64 x n) = or += a (64 x 16) b (16 x n)
//
// Warp w of the four holds rows 16 w to 16 w + 15 of c in registers: c[4 j] to c[4 j + 3] of a lane are its elements of
// columns 8 j to 8 j + 7, in the order that mma.h gives for c. Operand `a` is in shared memory, or in registers as in
// mma.h. Operand `b` is in shared memory. A descriptor gives the layout of an operand in shared memory.
//
// A batch of products takes these calls:
//
//   fence(c, a...)           makes earlier writes to these registers visible to the products
//   multiply_async(...) ...  any number; from here on c and a must not be touched, and c is unspecified
//   commit()                 ends the batch
//   wait<n>(c, a...)         waits for all batches but the last n; then these registers may be used again
//
// Operands in shared memory either came by TMA or were written with store_shared() and show_to_async_proxy() (tma.h).
#include "tensor/cuda/mma.h"
#include "tensor/cuda/tma.h"

namespace lockstep::on_cuda {

/// Threads of a warpgroup.
constexpr int warpgroup = 4 * warp;

// --- order ---

/// Stops the compiler from moving reads and writes of x, which is in registers, across this call.
__device__ inline void hold([[maybe_unused]] float& x) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+f"(x)::"memory");
#endif
}
__device__ inline void hold([[maybe_unused]] uint32_t& x) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(x)::"memory");
#endif
}
template <class T, int n> __device__ inline void hold(T (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) hold(x[i]);
}

/// fence(), commit() and wait() surround a batch of products, as shown at the top of this file. wait() leaves at most
/// `left` batches unfinished.
template <class... Arrays> __device__ inline void fence(Arrays&... registers) {
  (hold(registers), ...);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#elif !defined(__CUDACC__)
  simt::forget_fenced();
  (simt::fence_registers(&registers, sizeof(registers)), ...);
#endif
}
__device__ inline void commit() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#elif !defined(__CUDACC__)
  simt::commit_products();
#endif
}
template <int left, class... Arrays> __device__ inline void wait(Arrays&... registers) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
#elif !defined(__CUDACC__)
  simt::wait_and_check(left);
#endif
  (hold(registers), ...);
}

/// Writes an element of an operand in shared memory. Products see it after show_to_async_proxy() and a barrier.
template <class T> __device__ inline void store_shared(T* to, T value) {
  *to = value;
#if !defined(__CUDACC__)
  simt::was_written(to, sizeof(T));
#endif
}

// --- products ---

// PTX code names every register by its operand number, and c has the first n numbers. LIST_n is their list for the PTX
// code, and F_n binds them to the n elements of c.
#define LOCKSTEP_LIST_32                                                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31}, "
#define LOCKSTEP_LIST_64                                                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "  \
  "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
#define LOCKSTEP_F4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define LOCKSTEP_F16(c, i) LOCKSTEP_F4(c, i), LOCKSTEP_F4(c, i + 4), LOCKSTEP_F4(c, i + 8), LOCKSTEP_F4(c, i + 12)
#define LOCKSTEP_F32(c) LOCKSTEP_F16(c, 0), LOCKSTEP_F16(c, 16)
#define LOCKSTEP_F64(c) LOCKSTEP_F16(c, 0), LOCKSTEP_F16(c, 16), LOCKSTEP_F16(c, 32), LOCKSTEP_F16(c, 48)
// One wgmma.mma_async instruction with f32 sums. `operands` are the PTX operands after c. LOCKSTEP_WGMMA_SHARED takes a
// descriptor of operand a, LOCKSTEP_WGMMA_REGISTERS takes a in registers.
#define LOCKSTEP_WGMMA(columns, type, list, adds, operands, outputs, ...)                                             \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " adds ", 0; wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type \
               "." type " " list operands ";}"                                                                        \
               : outputs                                                                                              \
               : __VA_ARGS__)
#define LOCKSTEP_WGMMA_SHARED(type)                                                                              \
  if constexpr (columns == 64)                                                                                   \
    LOCKSTEP_WGMMA("64", type, LOCKSTEP_LIST_32, "%34", "%32, %33, p, 1, 1, %35, %36", LOCKSTEP_F32(c), "l"(a),  \
                   "l"(b), "r"(int(adds)), "n"(int(a_turned)), "n"(int(b_turned)));                              \
  else                                                                                                           \
    LOCKSTEP_WGMMA("128", type, LOCKSTEP_LIST_64, "%66", "%64, %65, p, 1, 1, %67, %68", LOCKSTEP_F64(c), "l"(a), \
                   "l"(b), "r"(int(adds)), "n"(int(a_turned)), "n"(int(b_turned)))
#define LOCKSTEP_WGMMA_REGISTERS(type)                                                                               \
  if constexpr (columns == 64)                                                                                       \
    LOCKSTEP_WGMMA("64", type, LOCKSTEP_LIST_32, "%37", "{%32, %33, %34, %35}, %36, p, 1, 1, %38", LOCKSTEP_F32(c),  \
                   "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds)), "n"(int(b_turned)));          \
  else                                                                                                               \
    LOCKSTEP_WGMMA("128", type, LOCKSTEP_LIST_64, "%69", "{%64, %65, %66, %67}, %68, p, 1, 1, %70", LOCKSTEP_F64(c), \
                   "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds)), "n"(int(b_turned)))

/// c += a b, or c = a b if `adds` is false. a and b are descriptors of the operands. An operand is `turned` if it is
/// contiguous along m or n instead of k.
template <class T, bool a_turned, bool b_turned, int count>
__device__ inline void multiply_async(float (&c)[count], uint64_t a, uint64_t b, bool adds) {
  constexpr int columns = 2 * count;
  static_assert(columns == 64 || columns == 128);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (std::is_same_v<T, Half>) {
    LOCKSTEP_WGMMA_SHARED("f16");
  } else {
    LOCKSTEP_WGMMA_SHARED("bf16");
  }
#elif !defined(__CUDACC__)
  simt::multiply_async(
      {c, nullptr, a, b, a_turned, b_turned, adds, columns, [](uint16_t bits) { return number<T>(bits); }});
#endif
}
/// multiply_async() with a in registers.
template <class T, bool b_turned, int count>
__device__ inline void multiply_async(float (&c)[count], const uint32_t (&a)[4], uint64_t b, bool adds) {
  constexpr int columns = 2 * count;
  static_assert(columns == 64 || columns == 128);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (std::is_same_v<T, Half>) {
    LOCKSTEP_WGMMA_REGISTERS("f16");
  } else {
    LOCKSTEP_WGMMA_REGISTERS("bf16");
  }
#elif !defined(__CUDACC__)
  simt::multiply_async({c, a, 0, b, false, b_turned, adds, columns, [](uint16_t bits) { return number<T>(bits); }});
#endif
}

#undef LOCKSTEP_WGMMA_REGISTERS
#undef LOCKSTEP_WGMMA_SHARED
#undef LOCKSTEP_WGMMA
#undef LOCKSTEP_F64
#undef LOCKSTEP_F32
#undef LOCKSTEP_F16
#undef LOCKSTEP_F4
#undef LOCKSTEP_LIST_64
#undef LOCKSTEP_LIST_32

// --- operands in shared memory ---

/// A tile of 16-bit numbers in the 128-byte swizzle, which has no bank conflicts along rows or down columns:
///
///   64 numbers of a row are eight chunks of 16 bytes; chunk j of row r is stored at position j ^ (r % 8) of 128 bytes.
///   Rows follow each other. Eight rows form a pattern of 1024 bytes; a tile must start at a multiple of 1024. Columns
///   64 to 127, if any, are stored in the same form after all rows of the first 64 columns.
///
/// `depth` is the width in steps of 16, as in RowTile: 4 or 8.
template <int size, int depth> struct SwizzledTile {
  static_assert(size % 8 == 0 && depth % 4 == 0);
  static constexpr int pattern = 1024, block = size * 128, bytes = block * (depth / 4);
  unsigned char* data;

  /// Address of 16-byte chunk `number` of a row.
  __device__ unsigned char* chunk(int row, int number) const {
    return data + number / 8 * block + row * 128 + ((number ^ row) % 8) * 16;
  }
  /// The descriptor of an operand `offset` bytes into the tile, with its leading and stride offsets in bytes (PTX ISA,
  /// "matrix descriptor").
  __device__ uint64_t describe(int offset, int leading, int stride) const {
    constexpr uint64_t swizzle_128 = 1;
    unsigned at = shared_address(data) + unsigned(offset);
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(at));  // else the compiler keeps the descriptors of all products of a loop in registers
#endif
    return uint64_t(at >> 4 & 0x3fff) | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | swizzle_128 << 62;
  }
  /// The descriptor of an operand whose summed dimension runs along the tile's rows. The operand is the rows from `row`
  /// on, in columns 16 k to 16 k + 15. The hardware ignores the leading offset here.
  __device__ uint64_t along(int row, int k) const {
    return describe(k / 4 * block + row * 128 + k % 4 * 32, 16, pattern);
  }
  /// The descriptor of a `turned` operand, whose summed dimension runs down the tile's columns. The operand is rows
  /// 16 k to 16 k + 15, in the columns from `column` on. `column` must be a multiple of 64.
  __device__ uint64_t down(int k, int column = 0) const {
    return describe(column / 64 * block + k * 16 * 128, block, pattern);
  }

  /// Starts copying `size` rows of x[b, h], from `row` on, to the tile. x must come from map_tiles(tensor, size). One
  /// thread calls fill(), after it has included `bytes` in the number that it passed to round.expect().
  __device__ void fill(const Arrivals& round, const TileMap& x, int64_t b, int64_t h, int64_t row) const {
#pragma unroll
    for (int n = 0; n < depth / 4; ++n) round.copy(x, data + n * block, b, h, row, 64 * n);
  }
};

/// Allocates a tile from shared memory and advances `free`.
template <class Z> __device__ inline Z take(unsigned char*& free) {
  const Z tile{free};
  free += Z::bytes;
  return tile;
}
/// The first address from `shared` on at which a swizzled tile may start: a multiple of 1024.
__device__ inline unsigned char* first_pattern(unsigned char* shared) {
  return shared + (1024 - shared_address(shared) % 1024) % 1024;
}

}  // namespace lockstep::on_cuda
