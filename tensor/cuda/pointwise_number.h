#pragma once
// The number type in which a pointwise operation is computed: FastFloat (device_math.h: fast, but accurate enough only
// for 16 bits) for activations whose result has 16 bits, else Computed<T>.
#include "tensor/cuda/device_math.h"
#include "tensor/cuda/pointwise.h"
#include "tensor/cuda/pointwise_table.h"

namespace lockstep::on_cuda {

template <class F, class... Any> inline constexpr bool is_one_of = (std::is_same_v<F, Any> || ...);
/// True if operation F is computed in FastFloat when its results have type T.
template <class F, class T>
inline constexpr bool is_fast =
    is_half<T>&& is_one_of<F, functor::Exp, functor::Tanh, functor::Sigmoid, functor::Silu, functor::Mish, functor::Elu,
                           functor::GeluErf, functor::GeluTanh, functor::SiluMul>;
template <class F, class T> using Number = std::conditional_t<is_fast<F, T>, FastFloat, Computed<T>>;

/// Returns the float in a FastFloat, and any other number unchanged.
template <class C> __device__ inline C plain(C x) { return x; }
__device__ inline float plain(FastFloat x) { return x.value; }

/// The scalar arguments of operation F in the type that F computes in for results of type T.
template <class F, class T> functor::Params<Number<F, T>> params_for(const PointwiseArgs& args) {
  const auto wide = params_of<Computed<T>>(args);
  return {Number<F, T>(wide.p), Number<F, T>(wide.q)};
}

}  // namespace lockstep::on_cuda
