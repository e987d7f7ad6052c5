#pragma once
// Elements in kernels: loads that widen, stores that round once, and the type that sums are carried in.
#include <type_traits>

#include "tensor/convert.h"
#include "tensor/cuda/simt.h"

namespace lockstep::on_cuda {

/// f16 and bf16 are computed in f32.
template <class T> using Compute = std::conditional_t<is_half<T>, float, T>;

template <class T> __device__ inline Compute<T> load(const T* p) { return Compute<T>(*p); }
template <class T> __device__ inline void store(T* p, Compute<T> value) { *p = T(value); }

}  // namespace lockstep::on_cuda
