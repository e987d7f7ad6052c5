#pragma once
// What a pointwise operation runs, by type of element. The instances are spread over several files, as nvcc takes its
// time.
#include <array>

#include "tensor/convert.h"
#include "tensor/functors.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {

using PointwiseFn = void (*)(const PointwiseArgs& args, const Tensor* const* in, Tensor& out);
inline constexpr int dtypes = 9;
using PointwiseRow = std::array<PointwiseFn, dtypes>;  // empty where there is none
using PointwiseTable = std::array<PointwiseRow, size_t(PointwiseOp::count)>;

using PointwisePairFn = void (*)(const Tensor& grad, const Tensor& a, const Tensor& b, Tensor& grad_a, Tensor& grad_b);
extern const std::array<std::array<PointwisePairFn, dtypes>, size_t(PointwiseOp::count)> binary_grads;

extern const PointwiseTable unary_values, unary_grads, binary_values, binary_grads0,
    binary_grads1;  // where, addcmul, lerp: in binary_values

/// Kinds of types in pointwise.def.
struct PointwiseKind {
  bool of_floats, of_integers, of_bool;
};
inline constexpr PointwiseKind floats{true, false, false}, numbers{true, true, false}, logic{false, false, true},
    everything{true, true, true};

/// Calls add.template operator()<T>(place in a row) for the types of a kind.
template <PointwiseKind kind, class Fn> constexpr void each_type(Fn add) {
  const auto all = [&]<class... T>() { (add.template operator()<T>(int(dtype_of<T>)), ...); };
  if constexpr (kind.of_floats) all.template operator()<float, double, Half, BFloat16>();
  if constexpr (kind.of_integers) all.template operator()<int64_t, int32_t, int8_t, uint8_t>();
  if constexpr (kind.of_bool) all.template operator()<bool>();
}

template <class C> functor::Params<C> params_of(const PointwiseArgs& args) { return {args.p.to<C>(), args.q.to<C>()}; }

/// On the card sin and cos take any argument; their stand-ins on the CPU leave large ones to std.
template <class F, class C>
concept has_large_arguments = std::is_same_v<C, float> && requires {
  F::large_value(0.0);
};

}  // namespace lockstep::on_cuda
