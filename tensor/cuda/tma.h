#pragma once
// The Tensor Memory Accelerator (TMA; Hopper, sm_90a). One thread starts copies of whole tiles of a tensor to shared
// memory, and all threads go on meanwhile. They wait for the tiles at a barrier in shared memory (mbarrier). PTX ISA:
// "cp.async.bulk.tensor", "mbarrier".
//
// Tiles come in rounds. A kernel does this in each round:
//
//   if (threadIdx.x == 0) {      one thread
//     arrivals.expect(bytes)     of all tiles of the round
//     arrivals.copy(...) ...
//   }
//   arrivals.wait(round)         all threads: the tiles have arrived
//   __syncthreads()              no thread waits any more, so the next round may start
#include "tensor/cuda/simt.h"
#include "tensor/cuda/tile_map.h"

namespace lockstep::on_cuda {

/// True if this code is compiled for Hopper's own instructions. Kernels that need them return at once if it is false,
/// as in mma.h.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool has_hopper = false;
#else
constexpr bool has_hopper = true;
#endif

/// The address of p within shared memory, as Hopper's instructions and descriptors expect it.
__device__ inline unsigned shared_address(const void* p) {
#if defined(__CUDA_ARCH__)
  return unsigned(__cvta_generic_to_shared(p));
#elif !defined(__CUDACC__)
  return simt::shared_address(p);
#else
  return 0;
#endif
}

/// wgmma and TMA access shared memory through the async proxy, not through the path of ordinary loads and stores. A
/// thread that wrote data for them calls this after its writes and before the barrier.
__device__ inline void show_to_async_proxy() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#elif !defined(__CUDACC__)
  simt::fence_proxy();
#endif
}

/// A block's barrier, at which its threads wait for the tiles to arrive. `barrier` is in shared memory.
class Arrivals {
 public:
  /// Initialises the barrier; synchronises the block.
  __device__ explicit Arrivals(uint64_t* barrier) : barrier_(barrier) {
    if (threadIdx.x == 0) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier_)) : "memory");
#elif !defined(__CUDACC__)
      simt::make_arrivals(barrier_, 1);
#endif
      show_to_async_proxy();
    }
    __syncthreads();
  }
  /// Tells the barrier how many bytes the copies of this round write in all, including zeros outside the tensor.
  __device__ void expect([[maybe_unused]] int bytes) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier_)), "r"(bytes)
                 : "memory");
#elif !defined(__CUDACC__)
    simt::arrive_and_expect(barrier_, unsigned(bytes));
#endif
  }
  /// Starts copying the box whose first element is x[b, h, token, column]; elements outside the tensor become zeros.
  __device__ void copy([[maybe_unused]] const TileMap& x, [[maybe_unused]] void* to, [[maybe_unused]] int64_t b,
                       [[maybe_unused]] int64_t h, [[maybe_unused]] int64_t token, [[maybe_unused]] int column) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
        "%6}], [%2];" ::"r"(shared_address(to)),
        "l"(&x.map), "r"(shared_address(barrier_)), "r"(column), "r"(int(token)), "r"(int(h)), "r"(int(b))
        : "memory");
#elif !defined(__CUDACC__)
    simt::copy_tile(x.map, to, barrier_, {column, int(token), int(h), int(b)});
#endif
  }
  /// Waits for all copies of round number `round` (from 0). It traps after some seconds, so that the kernel ends with
  /// an error instead of hanging.
  __device__ void wait([[maybe_unused]] int round) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int max_tries = 1 << 24;
    unsigned over = 0;
    for (int tries = 0; !over; ++tries) {
      if (tries == max_tries) __trap();
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                   : "=r"(over)
                   : "r"(shared_address(barrier_)), "r"(round % 2)
                   : "memory");
    }
#elif !defined(__CUDACC__)
    simt::wait_for_tiles(barrier_, unsigned(round % 2));
#endif
  }

 private:
  uint64_t* barrier_;
};

}  // namespace lockstep::on_cuda
