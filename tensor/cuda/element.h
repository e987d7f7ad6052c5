#pragma once
// Elements in kernels: loads that widen, stores that round once, and the type that sums are accumulated in.
#include <type_traits>

#include "tensor/convert.h"
#include "tensor/cuda/simt.h"

namespace lockstep::on_cuda {

/// The type to compute in: float for f16 and bf16, else T.
template <class T> using Compute = std::conditional_t<is_half<T>, float, T>;

/// Loads an element and widens it.
template <class T> __device__ inline Compute<T> load(const T* p) { return Compute<T>(*p); }
/// Rounds a value and stores it.
template <class T> __device__ inline void store(T* p, Compute<T> value) { *p = T(value); }

/// Calls fn.operator()<T>() with the unsigned integer type of the dtype's width.
template <class Fn> void dispatch_width(DType dtype, Fn&& fn) {
  switch (size_of(dtype)) {
    case 1: return fn.template operator()<uint8_t>();
    case 2: return fn.template operator()<uint16_t>();
    case 4: return fn.template operator()<uint32_t>();
    default: return fn.template operator()<uint64_t>();
  }
}

}  // namespace lockstep::on_cuda
