#pragma once
// Lets blocks add to the same memory in a fixed order: each block waits for its turn.
//
// The hardware starts blocks in an unspecified order, and a waiting block occupies its multiprocessor. To avoid a
// deadlock, a block may wait only for blocks that started before it. So blocks number themselves when they start
// (take_ticket()), and this number, not blockIdx, decides the work and the turn of a block.
#include "tensor/cuda/warp.h"

namespace lockstep::on_cuda {

/// Numbers the blocks in the order in which they start; `counter` is 0 before the kernel. Synchronises the block; call
/// it once per kernel.
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

// With plain or volatile accesses, *semaphore could become visible to others before data that were written earlier. In
// PTX's memory model, a thread whose acquire load reads the value of a release store also sees everything that was
// written before the store, including other lanes' writes before a __syncwarp().

/// Called by a warp: waits until *semaphore is `number`.
__device__ inline void wait_for_semaphore(const unsigned* semaphore, unsigned number) {
  for (unsigned observed = number;;) {
#if defined(__CUDA_ARCH__)
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(observed) : "l"(semaphore) : "memory");
#elif !defined(__CUDACC__)
    observed = simt::load_acquire(semaphore);
#endif
    if (observed == number) return;
    __nanosleep(32);
  }
}

/// Called by a warp: sets *semaphore to `number`, after the earlier writes of all its lanes.
__device__ inline void release_semaphore(unsigned* semaphore, unsigned number) {
  __syncwarp();
  if (threadIdx.x % warp != 0) return;
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(semaphore), "r"(number) : "memory");
#elif !defined(__CUDACC__)
  simt::store_release(semaphore, number);
#endif
}

/// Adds the parts of several warps in order. Each warp calls it with its part in `sum`. It waits until the `before`
/// earlier warps have added their parts, and adds their total, which is in `sums`. If no warp follows (`after` is 0),
/// it returns true with the total in `sum`. Otherwise it writes the total to `sums` for the next warp, and returns
/// false.
template <int stride, int count>
__device__ inline bool add_in_order(unsigned* semaphore, float4* sums, int64_t before, int64_t after,
                                    float (&sum)[count][4]) {
  if (before > 0) {
    wait_for_semaphore(semaphore, unsigned(before));
#pragma unroll
    for (int n = 0; n < count; ++n) {
      const float4 x = __ldcg(sums + n * stride);
      sum[n][0] += x.x, sum[n][1] += x.y, sum[n][2] += x.z, sum[n][3] += x.w;
    }
  }
  if (after <= 0) return true;
#pragma unroll
  for (int n = 0; n < count; ++n) __stcg(sums + n * stride, make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]));
  release_semaphore(semaphore, unsigned(before + 1));
  return false;
}

}  // namespace lockstep::on_cuda
