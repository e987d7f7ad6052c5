// simt_cpu.h - runs one CUDA block's threads as fibers on one OS thread.
// Real NVIDIA headers are used for the *types* (dim3, __half, cudaStream_t ...), so the
// kernel and the host code are type checked against the real API.
#pragma once
#ifndef SIMT_CPU
#error "kernel file compiled by a host compiler without -DSIMT_CPU"
#endif
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cmath>
#include <cstdint>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <algorithm>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

namespace simt {

struct ThreadCtx {            // read by kernels at every threadIdx use: keep it small and first
  uint3 tid;
  unsigned lin, lane, warp;
};
extern constinit thread_local ThreadCtx* t_ctx;

enum class Order { Forward, Reverse, Random };
struct Options {
  Order order = Order::Forward;   // order in which runnable threads of a block (and blocks) run
  uint64_t seed = 1;
  unsigned char poison = 0xFF;    // shared memory is filled with this before each block (NaN floats)
  bool strict_barrier = true;     // a thread that exits while others wait at a barrier is an error
};
Options& options();
struct Stats { uint64_t switches = 0, blocks = 0, threads = 0, barriers = 0, warp_ops = 0, fibers_used = 0; };
Stats& stats();
struct Fault { std::string what; };     // thrown by run() to the launcher

// --- called from kernels ------------------------------------------------------------------
void barrier(const char* where, int line);
// Each lane of `mask` posts `bytes` (<=16) and reads lane `src`'s; op_id checks all lanes run the same op.
void warp_exchange(unsigned mask, unsigned op_id, const void* in, void* out, unsigned bytes, int src, int width);
unsigned warp_ballot(unsigned mask, int pred);
void warp_sync(unsigned mask);
void fence();                            // __threadfence*: orders memory for the race detector
void* shared_slot(const void* key, size_t bytes, size_t align, const char* name);
void* dyn_shared();
[[noreturn]] void fault(const std::string&);

// --- called by the host side ----------------------------------------------------------------
void run_grid(dim3 g, dim3 b, size_t smem, const std::function<void()>& body);

// stream hook: the fake runtime installs a queue; default = run at once
using EnqueueFn = void (*)(cudaStream_t, std::function<void()>);
extern EnqueueFn g_enqueue;

template <class... KArgs, class... Args>
inline cudaError_t launch(dim3 g, dim3 b, size_t smem, cudaStream_t s, void (*k)(KArgs...), Args&&... a) {
  // the same limits the driver enforces, so a bad launch fails in CI as it would on the card
  const uint64_t n = uint64_t(b.x) * b.y * b.z;
  if (n == 0 || n > 1024 || b.z > 64 || g.x == 0 || g.y == 0 || g.z == 0 || g.y > 65535 || g.z > 65535)
    return cudaErrorInvalidConfiguration;
  if (smem > 227 * 1024) return cudaErrorInvalidValue;
  std::tuple<std::decay_t<KArgs>...> args(std::forward<Args>(a)...);   // by value, like a real launch
  g_enqueue(s, [=] { run_grid(g, b, smem, [&] { std::apply(k, args); }); });
  return cudaSuccess;
}
}  // namespace simt

// real variables, not macros: headers included later use these names as parameters.
// constinit: no TLS wrapper call per use.  resume() stores threadIdx at every switch.
extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// `LOCKSTEP_SHARED(float, red, [32])` -> float (&red)[32], one per block, poisoned, with red zones.
#define LOCKSTEP_SHARED(T, name, ...)                                                              \
  using simt_sh_t_##name = T __VA_ARGS__;                                                      \
  static const char simt_sh_k_##name = 0;                                                      \
  simt_sh_t_##name& name = *static_cast<simt_sh_t_##name*>(                                    \
      simt::shared_slot(&simt_sh_k_##name, sizeof(simt_sh_t_##name), alignof(simt_sh_t_##name), #name))
#define LOCKSTEP_DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(simt::dyn_shared())

#define __syncthreads() simt::barrier(__FILE__, __LINE__)
inline void __syncwarp(unsigned m = 0xffffffffu) { simt::warp_sync(m); }
inline void __threadfence() { simt::fence(); }
inline void __threadfence_block() { simt::fence(); }
inline void __threadfence_system() { simt::fence(); }

namespace simt {
template <class T> inline T shfl_any(unsigned mask, unsigned op, T v, int src, int width) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  T r; warp_exchange(mask, op, &v, &r, sizeof(T), src, width); return r;
}
}
template <class T> inline T __shfl_sync(unsigned m, T v, int src, int w = 32) {
  int lane = simt::t_ctx->lane, base = lane & ~(w - 1);
  return simt::shfl_any(m, 1, v, base + (src & (w - 1)), w);
}
template <class T> inline T __shfl_xor_sync(unsigned m, T v, int x, int w = 32) {
  int lane = simt::t_ctx->lane, base = lane & ~(w - 1), s = lane ^ x;
  return simt::shfl_any(m, 2, v, s < base + w ? s : lane, w);
}
template <class T> inline T __shfl_down_sync(unsigned m, T v, unsigned d, int w = 32) {
  int lane = simt::t_ctx->lane, base = lane & ~(w - 1), s = lane + int(d);
  return simt::shfl_any(m, 3, v, s < base + w ? s : lane, w);
}
template <class T> inline T __shfl_up_sync(unsigned m, T v, unsigned d, int w = 32) {
  int lane = simt::t_ctx->lane, base = lane & ~(w - 1), s = lane - int(d);
  return simt::shfl_any(m, 4, v, s >= base ? s : lane, w);
}
inline unsigned __ballot_sync(unsigned m, int p) { return simt::warp_ballot(m, p); }
inline int __any_sync(unsigned m, int p) { return simt::warp_ballot(m, p) != 0; }
inline int __all_sync(unsigned m, int p) { return simt::warp_ballot(m, p) == m; }

// atomics: relaxed, like the hardware's
template <class T> inline T atomicAdd(T* p, T v) {
  if constexpr (std::is_integral_v<T>) return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
  else {
    T old; __atomic_load(p, &old, __ATOMIC_RELAXED);
    for (;;) { T nw = old + v; if (__atomic_compare_exchange(p, &old, &nw, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old; }
  }
}
template <class T> inline T atomicMax(T* p, T v) {
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (old < v && !__atomic_compare_exchange_n(p, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return old;
}
template <class T> inline T atomicCAS(T* p, T c, T v) {
  __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); return c;
}
// device math that <cmath> lacks
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
template <class T> inline T __ldg(const T* p) { return *p; }
using std::min; using std::max;
