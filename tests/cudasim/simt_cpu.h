#pragma once
// CUDA C++ for the host compiler: the parts of the language and the device functions that our .cu files use, executed
// by the block emulator (block.cpp). The types come from NVIDIA's own headers, so kernels and host code are checked
// against the real API.
#if !defined(SIMT_CPU)
#error "a .cu file compiled by the host compiler needs -Dcuda=simulated (-DSIMT_CPU)"
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/cudasim/block.h"
#include "tests/cudasim/products.h"
#include "tests/cudasim/tma.h"

#pragma GCC diagnostic ignored "-Wunknown-pragmas"  // #pragma unroll

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

// Variables, not macros: NVIDIA's headers use these names for parameters. constinit avoids a wrapper call at each use.
extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace simt {

/// The address if the argument is a pointer to an object, else nullptr.
template <class T> const void* pointee(const T& argument) {
  if constexpr (std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>) return argument;
  else return nullptr;
}

/// Starts a kernel, or returns the driver's error for such a launch. The arguments are copied, as in a real launch.
template <class... Parameters, class... Args>
cudaError_t launch(const char* op, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   void (*kernel)(Parameters...), Args&&... args) {
  const cudaError_t refused = check_launch(reinterpret_cast<const void*>(kernel), grid, block, shared);
  if (refused != cudaSuccess) return refused;
  std::tuple<std::decay_t<Parameters>...> copies(std::forward<Args>(args)...);
  return enqueue_kernel(op, stream, [=, device = launch_device()] {
    const bool usable = std::apply(
        [&](const auto&... arguments) {
          size_t number = 0;
          return (is_argument(op, device, ++number, pointee(arguments)) && ...);
        },
        copies);
    if (usable) run_grid(op, grid, block, shared, [&] { std::apply(kernel, copies); });
  });
}

}  // namespace simt

// --- shared memory: one array per block, filled with NaN and surrounded by red zones ---
#define LOCKSTEP_SHARED(T, name, ...)                             \
  using simt_type_of_##name = T __VA_ARGS__;                      \
  static const char simt_key_of_##name = 0;                       \
  simt_type_of_##name& name = *static_cast<simt_type_of_##name*>( \
      simt::shared_array(&simt_key_of_##name, sizeof(simt_type_of_##name), alignof(simt_type_of_##name), #name))
#define LOCKSTEP_DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(simt::dynamic_shared())

// --- synchronisation ---
// Each passes its place in the source, so that divergent barriers are detected.
#define __syncthreads() simt::barrier(__FILE__, __LINE__)
#define __syncthreads_count(predicate) simt::barrier(__FILE__, __LINE__, (predicate) != 0)
#define __syncthreads_or(predicate) int(simt::barrier(__FILE__, __LINE__, (predicate) != 0) > 0)
inline void __syncwarp(unsigned mask = ~0u) { simt::warp_sync(mask); }
inline void __threadfence() { simt::fence(); }
inline void __threadfence_system() { simt::fence(); }

/// Kernels call it in loops that poll memory.
inline void __nanosleep(unsigned) { simt::sleep(); }

namespace simt {

/// ld.acquire and st.release. ThreadSanitizer sees another block's writes as ordered only through these.
inline unsigned load_acquire(const unsigned* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
inline void store_release(unsigned* p, unsigned value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }

/// cp.async. From now on the old contents are gone, and the new ones may not be used until the thread has waited.
template <unsigned bytes> void copy_async(void* to, const void* from) {
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0)
    fault("copy to shared memory: an address is not a multiple of its bytes");
  begin_copy({to, from, bytes});
  std::memset(to, 0xff, bytes);
}
/// cp.async.wait_group, and without a number cp.async.wait_all.
inline void wait_for_groups(int left) {
  for (Copy copy; take_copy(copy, left);) {
    if (copy.from) std::memcpy(copy.to, copy.from, copy.bytes);
    else std::memset(copy.to, 0, copy.bytes);
    was_written(copy.to, copy.bytes);
  }
}
inline void wait_for_copies() { wait_for_groups(-1); }

// --- TMA (tma.h) ---

// The bytes are written here, in instrumented code, so that sanitizers see the writes: NaN by the thread that starts
// the copy, the data by the first thread that waits for it.
inline void copy_tile(const CUtensorMap& map, void* to, uint64_t* barrier, const int (&at)[4]) {
  const unsigned bytes = begin_tile(map, to, barrier, at);
  std::memset(to, 0xff, bytes);
}
/// Waits for the phase of this parity and writes what has arrived.
inline void wait_for_tiles(uint64_t* barrier, unsigned parity) {
  for (Piece piece; take_piece(barrier, parity, piece);) {
    if (piece.from) std::memcpy(piece.to, piece.from, 16);
    else std::memset(piece.to, 0, 16);
    tile_arrived(piece.to, 16);
  }
}

// --- asynchronous products (products.h) ---

/// The address of p in the shared memory window.
inline unsigned shared_address(const void* p) {
  return unsigned(static_cast<const unsigned char*>(p) - shared_arena());
}
// Operands are read here, in instrumented code, so that sanitizers see the reads: by the first thread that issues a
// product and by the last one that waits for it.
inline void gather(const Chunk* const* places, unsigned count, Chunk* to) {
  for (unsigned i = 0; i < count; ++i) to[i] = *places[i];
}
/// Issues a wgmma product for this thread.
inline void multiply_async(const Product& product) {
  const Chunk* places[max_chunks];
  Chunk operands[max_chunks];
  const unsigned count = begin_product(product, places);
  gather(places, count, operands);
  issue_product(product, count > 0 ? operands : nullptr);
}
/// Waits until at most `left` groups are pending, and checks that the operands of finished products did not change.
inline void wait_and_check(unsigned left) {
  const Chunk* places[max_chunks];
  Chunk operands[max_chunks];
  wait_for_products(left);
  while (const unsigned count = end_product(places)) {
    gather(places, count, operands);
    check_product(operands);
  }
}

}  // namespace simt

// --- warp operations, for the types that CUDA supports ---
namespace simt {

/// The types that can be shuffled.
template <class T>
concept Shuffled = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half2> ||
    std::is_same_v<T, __nv_bfloat162> ||(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));

// Reads from lane `source`, or from the lane itself if `source` is outside its group of `width` (not `inside`).
template <Shuffled T> T shuffle(unsigned mask, Warp op, T value, int source, int width, bool inside) {
  T result;
  warp_exchange(mask, op, &value, &result, sizeof(T), inside ? source : int(here->lane), width);
  return result;
}

}  // namespace simt
template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int first = int(simt::here->lane) & ~(width - 1);
  return simt::shuffle(mask, simt::Warp::shfl, value, first + (source & (width - 1)), width, true);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int lane = int(simt::here->lane), source = lane ^ lanes;
  return simt::shuffle(mask, simt::Warp::shfl_xor, value, source, width, source < (lane & ~(width - 1)) + width);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = int(simt::here->lane), source = lane + int(delta);
  return simt::shuffle(mask, simt::Warp::shfl_down, value, source, width, source < (lane & ~(width - 1)) + width);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = int(simt::here->lane), source = lane - int(delta);
  return simt::shuffle(mask, simt::Warp::shfl_up, value, source, width, source >= (lane & ~(width - 1)));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return simt::warp_ballot(mask, predicate != 0); }

// --- atomics: relaxed, as on the hardware ---
namespace simt {
/// Replaces *p by next(*p) atomically; returns the old value.
template <class T, class Fn> T atomic_update(T* p, Fn next) {
  T old;
  give_way();
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  for (T wanted = next(old); !__atomic_compare_exchange(p, &old, &wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
       wanted = next(old)) {}
  give_way();
  return old;
}
// NVIDIA overloads each function by type; the second argument converts to the type of the first.
template <class T> using Same = std::type_identity_t<T>;
}  // namespace simt
template <class T> T atomicAdd(T* p, simt::Same<T> value) {
  return simt::atomic_update(p, [=](T old) { return T(old + value); });
}
template <class T> T atomicMax(T* p, simt::Same<T> value) {
  return simt::atomic_update(p, [=](T old) { return old < value ? value : old; });
}
template <class T> T atomicMin(T* p, simt::Same<T> value) {
  return simt::atomic_update(p, [=](T old) { return value < old ? value : old; });
}
template <class T> T atomicExch(T* p, simt::Same<T> value) {
  return simt::atomic_update(p, [=](T) { return value; });
}
template <class T> T atomicCAS(T* p, simt::Same<T> expected, simt::Same<T> value) {
  simt::give_way();
  __atomic_compare_exchange(p, &expected, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
inline unsigned atomicInc(unsigned* p, unsigned limit) {
  return simt::atomic_update(p, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}

// --- device functions missing in <cmath> ---
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
namespace simt {
/// A result that no later operation is fused with.
template <class T> T apart(T result) {
  volatile T kept = result;
  return kept;
}
}  // namespace simt
inline float __fadd_rn(float a, float b) { return simt::apart(a + b); }
inline float __fmul_rn(float a, float b) { return simt::apart(a * b); }
inline double __dadd_rn(double a, double b) { return simt::apart(a + b); }
inline double __dmul_rn(double a, double b) { return simt::apart(a * b); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(unsigned(x)) + 1; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> void __stcg(T* p, simt::Same<T> value) { *p = value; }
[[noreturn]] inline void __trap() { simt::fault("__trap()"); }
using std::max;
using std::min;
