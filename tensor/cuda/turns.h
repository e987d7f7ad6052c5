#pragma once
// Blocks that add to one place in a fixed order: each waits for its turn.
//
// A device starts a block when there is room for it, in no order that it promises, and a block that waits keeps its
// room. So a block may wait only for those that have begun before it: what it works on, and so its turns, follow from a
// ticket, and not from its place in the grid.
#include "tensor/cuda/warp.h"

namespace lockstep::on_cuda {

/// The number of this block in the order in which they begin; `counter` is 0 before the kernel. A barrier for the
/// block, once in a kernel.
__device__ inline unsigned take_ticket(unsigned* counter) {
  LOCKSTEP_SHARED(unsigned, ticket, [1]);
  if (threadIdx.x == 0) {
    ticket[0] = atomicAdd(counter, 1u);
#if !defined(__CUDACC__)
    ticket[0] = unsigned(simt::nth_block(ticket[0]));
#endif
  }
  __syncthreads();
  return ticket[0];
}

// Why not plain or volatile: these order nothing but themselves, so that the number could be seen before what was
// written ahead of it. In PTX's memory model a store that releases, and a load of that number which acquires, order all
// that came before the one, also other lanes' writes before a __syncwarp(), ahead of all that follows the other.

/// For a warp: waits until *turn is `number`.
__device__ inline void wait_for_turn(const unsigned* turn, unsigned number) {
  for (unsigned seen = number;;) {
#if defined(__CUDA_ARCH__)
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(turn) : "memory");
#elif !defined(__CUDACC__)
    seen = simt::load_acquire(turn);
#endif
    if (seen == number) return;
    __nanosleep(32);
  }
}

/// For a warp: sets *turn after what its lanes wrote.
__device__ inline void pass_turn(unsigned* turn, unsigned number) {
  __syncwarp();
  if (threadIdx.x % warp != 0) return;
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(turn), "r"(number) : "memory");
#elif !defined(__CUDACC__)
  simt::store_release(turn, number);
#endif
}

/// For a warp: adds what those `before` it left of its lanes' numbers, lane by lane at sums[n * stride]. True where
/// nobody comes after, and the whole is in `sum`; else it lies there for the next.
template <int stride, int count>
__device__ inline bool add_in_turn(unsigned* turn, float4* sums, int64_t before, int64_t after,
                                   float (&sum)[count][4]) {
  if (before > 0) {
    wait_for_turn(turn, unsigned(before));
#pragma unroll
    for (int n = 0; n < count; ++n) {
      const float4 x = __ldcg(sums + n * stride);
      sum[n][0] += x.x, sum[n][1] += x.y, sum[n][2] += x.z, sum[n][3] += x.w;
    }
  }
  if (after <= 0) return true;
#pragma unroll
  for (int n = 0; n < count; ++n) __stcg(sums + n * stride, make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]));
  pass_turn(turn, unsigned(before + 1));
  return false;
}

}  // namespace lockstep::on_cuda
