#pragma once
// Shared by attention forward and backward on Hopper's tensor cores. wgmma.h has the matrix products; attention_mma.h
// describes which elements of a result a lane holds.
#include "tensor/cuda/attention_mma.h"
#include "tensor/cuda/device_math.h"
#include "tensor/cuda/wgmma.h"

namespace lockstep::on_cuda {

/// Returns the accumulator of a wgmma product as an array of smaller ones, laid out as in mma.h: one per 8 columns.
template <int count> __device__ inline float (&in_fours(float (&sum)[count]))[count / 4][4] {
  return reinterpret_cast<float(&)[count / 4][4]>(sum);
}
/// Rounds the accumulator of one product and packs it as left operands of another; each operand has 16 columns.
template <class T, int count> __device__ inline void as_left(const float (&score)[count], uint32_t (&a)[count / 8][4]) {
#pragma unroll
  for (int e = 0; e < count; e += 2) a[e / 8][e / 2 % 4] = pack<T>(score[e], score[e + 1]);
}

/// Upper bound of the bytes skipped to align the first tile: dynamic shared memory is only guaranteed to start at a
/// multiple of 16 bytes, swizzled tiles need 1024.
constexpr size_t max_before_pattern = 1024;

/// Calls fn.template operator()<T, depth>() for heads of 64 or 128 elements (depth 4 or 8).
template <class Fn> void with_full_depth(const Tensor& q, Fn&& fn) {
  dispatch<Half, BFloat16>(q.dtype(), "attention", [&]<class T> {
    if (q.shape()[3] == 64) fn.template operator()<T, 4>();
    else fn.template operator()<T, 8>();
  });
}

}  // namespace lockstep::on_cuda
