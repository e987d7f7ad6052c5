#pragma once
// What both directions of attention share on Hopper's tensor cores. See wgmma.h for products, and attention_mma.h for
// where a lane's numbers lie.
#include "tensor/cuda/attention_mma.h"
#include "tensor/cuda/wgmma.h"

namespace lockstep::on_cuda {

/// 2^x to two units in the last place, one instruction; results below 2^-126 are 0.
__device__ inline float exp2_of(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

/// Dynamic shared memory is only said to begin at 16 bytes.
constexpr size_t most_before_pattern = 1024;

/// Calls fn.template operator()<T, depth>() for heads of 64 or 128.
template <class Fn> void with_whole_depth(const Tensor& q, Fn&& fn) {
  dispatch<Half, BFloat16>(q.dtype(), "attention", [&]<class T> {
    if (q.shape()[3] == 64) fn.template operator()<T, 4>();
    else fn.template operator()<T, 8>();
  });
}

}  // namespace lockstep::on_cuda
