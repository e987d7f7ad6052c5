#pragma once
// The loop nest over the elements of N tensors of one shape and any strides, as a kernel needs it: dims of size 1 are
// dropped, dims are ordered by the strides of one of the tensors, and neighbouring dims that are contiguous in all
// tensors are merged. A kernel then computes the offsets of an element from its flat index. If all flat indices are
// below 2^31, it does so with multiplications instead of divisions.
#include "tensor/cuda/simt.h"
#include "tensor/tensor.h"

namespace lockstep::on_cuda {

/// n / by for n < 2^31, by a multiplication and a shift.
struct Divider {
  uint32_t by = 1, magic = 0, shift = 0;

  Divider() = default;
  explicit Divider(uint32_t by) : by(by) {
    while (shift < 31 && (uint32_t(1) << shift) < by) ++shift;
    magic = uint32_t(((uint64_t(1) << 32) * ((uint64_t(1) << shift) - by)) / by + 1);
  }
  /// n / by.
  __device__ uint32_t divide(uint32_t n) const { return (uint32_t(uint64_t(n) * magic >> 32) + n) >> shift; }
};

/// Flat indices below this are divided in 32 bits.
inline constexpr int64_t max_narrow = int64_t(1) << 31;

/// n / by; in 32 bits if `narrow` promises that all n are below 2^31. A divisor of 0 counts as 1.
struct AnyDivider {
  int64_t by;
  bool narrow;
  Divider fast;

  AnyDivider(int64_t by, bool narrow)
      : by(std::max<int64_t>(by, 1)), narrow(narrow), fast(narrow ? Divider(uint32_t(this->by)) : Divider()) {}
  /// n / by.
  __device__ int64_t divide(int64_t n) const { return narrow ? int64_t(fast.divide(uint32_t(n))) : n / by; }
};

/// The loops over N tensors. Build it with insert(), then optionally join(), then prepare().
template <int N> struct Nest {
  int rank = 0;
  bool narrow = true;
  int64_t size[Dims::max_rank];  // outermost first
  int64_t stride[Dims::max_rank][N];
  Divider divider[Dims::max_rank];

  /// Number of elements.
  int64_t count() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= size[d];
    return n;
  }
  /// Inserts a dim, keeping the dims sorted by descending stride of tensor `lead`.
  void insert(int64_t length, const int64_t (&strides)[N], int lead) {
    if (length == 1) return;
    int at = rank++;
    for (; at > 0 && stride[at - 1][lead] < strides[lead]; --at) {
      size[at] = size[at - 1];
      std::copy(stride[at - 1], stride[at - 1] + N, stride[at]);
    }
    size[at] = length;
    std::copy(strides, strides + N, stride[at]);
  }
  /// Merges neighbouring dims that are contiguous in all tensors.
  void join() {
    int last = 0;
    for (int d = 1; d < rank; ++d) {
      bool joins = true;
      for (int i = 0; i < N; ++i) joins &= stride[last][i] == stride[d][i] * size[d];
      if (joins) {
        size[last] *= size[d];
      } else {
        size[++last] = size[d];
      }
      std::copy(stride[d], stride[d] + N, stride[last]);
    }
    if (rank > 0) rank = last + 1;
  }
  /// Computes the divisors that find() needs. Call it last, after insert() and join().
  void prepare() {
    narrow = count() < max_narrow;
    for (int d = 0; d < rank; ++d) divider[d] = narrow ? Divider(uint32_t(size[d])) : Divider();
  }

  /// Adds the offset of element `flat` in tensor i to at[i], for all tensors. Returns the index in the innermost dim.
  __device__ int64_t find(int64_t flat, int64_t (&at)[N]) const {
    int64_t inner = 0;
    if (narrow) {
      uint32_t rest = uint32_t(flat);
#pragma unroll 1
      for (int d = rank - 1; d >= 0; --d) {
        const uint32_t above = d == 0 ? 0 : divider[d].divide(rest), index = rest - above * divider[d].by;
        if (d == rank - 1) inner = index;
#pragma unroll
        for (int i = 0; i < N; ++i) at[i] += index * stride[d][i];
        rest = above;
      }
    } else {
#pragma unroll 1
      for (int d = rank - 1; d >= 0; --d) {
        const int64_t above = d == 0 ? 0 : flat / size[d], index = flat - above * size[d];
        if (d == rank - 1) inner = index;
        for (int i = 0; i < N; ++i) at[i] += index * stride[d][i];
        flat = above;
      }
    }
    return inner;
  }
};

/// Stride of x along dim d of a shape of `rank` dims that x is broadcast to; 0 if x is repeated along d.
inline int64_t broadcast_stride(const Tensor& x, int d, int rank) {
  const int own = d - (rank - x.dim());
  return own < 0 || x.shape()[own] == 1 ? 0 : x.strides()[own];
}

}  // namespace lockstep::on_cuda
