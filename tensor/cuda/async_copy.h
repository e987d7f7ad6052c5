#pragma once
// Copies from global to shared memory that go on while their thread does other work (cp.async, sm_80 and later). They
// are not held in registers on their way, so a thread may have many of them in flight.
#include "tensor/cuda/warp.h"

namespace lockstep::on_cuda {

/// Starts copying 4 or 16 bytes to shared memory; writes zeros if `there` is false. This thread sees the data after
/// wait_for_copies(), the rest of the block after a barrier. Older GPUs copy at once.
template <int bytes> __device__ inline void copy_async(void* to, const void* from, bool there = true) {
  static_assert(bytes == 4 || bytes == 16);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto at = unsigned(__cvta_generic_to_shared(to));
  const int read = there ? bytes : 0;
  if constexpr (bytes == 16)  // bypasses L1
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(read) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(read) : "memory");
#elif defined(__CUDA_ARCH__)
  using Bytes = std::conditional_t<bytes == 16, uint4, unsigned>;
  *static_cast<Bytes*>(to) = there ? *static_cast<const Bytes*>(from) : Bytes{};
#elif !defined(__CUDACC__)
  simt::copy_async<bytes>(to, there ? from : nullptr);
#endif
}
/// Waits for all copies that this thread started.
__device__ inline void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#elif !defined(__CUDACC__)
  simt::wait_for_copies();
#endif
}

/// Ends a group of copies: those that this thread started since the last group.
__device__ inline void end_group_of_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(__CUDACC__)
  simt::end_group_of_copies();
#endif
}
/// Waits until at most the last `left` groups are still on their way.
template <int left> __device__ inline void wait_for_groups() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#elif !defined(__CUDACC__)
  simt::wait_for_groups(left);
#endif
}

}  // namespace lockstep::on_cuda
