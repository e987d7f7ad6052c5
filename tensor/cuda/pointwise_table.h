#pragma once
// The tables of pointwise kernels by operation and dtype. The instances are spread over several files, because nvcc
// takes long for them.
#include <array>

#include "tensor/convert.h"
#include "tensor/functors.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {

/// Runs one operation on one dtype.
using PointwiseFn = void (*)(const PointwiseArgs& args, const Tensor* const* in, Tensor& out);
/// `dtypes` is the number of dtypes. A PointwiseRow has the kernels of one operation by dtype (null: not supported),
/// and a PointwiseTable has the rows of all operations.
inline constexpr int dtypes = 9;
using PointwiseRow = std::array<PointwiseFn, dtypes>;
using PointwiseTable = std::array<PointwiseRow, size_t(PointwiseOp::count)>;

/// Computes both derivatives of a binary operation in one pass.
using PointwisePairFn = void (*)(const Tensor& grad, const Tensor& a, const Tensor& b, Tensor& grad_a, Tensor& grad_b);
extern const std::array<std::array<PointwisePairFn, dtypes>, size_t(PointwiseOp::count)> binary_grads;

/// The kernels for values and derivatives of operations with one operand (unary) and two (binary). binary_grads0 holds
/// derivatives with respect to the first operand, binary_grads1 to the second. binary_values also has where, addcmul
/// and lerp.
extern const PointwiseTable unary_values, unary_grads, binary_values, binary_grads0, binary_grads1;

/// The dtypes that an operation supports. pointwise.def gives each operation a kind: `floats`, `numbers` or `logic`.
struct PointwiseKind {
  bool of_floats, of_integers, of_bool;
};
inline constexpr PointwiseKind floats{true, false, false}, numbers{true, true, false}, logic{false, false, true},
    everything{true, true, true};

/// Calls add.template operator()<T>(index of T's dtype) for every element type T of a kind.
template <PointwiseKind kind, class Fn> constexpr void each_type(Fn add) {
  const auto all = [&]<class... T>() { (add.template operator()<T>(int(dtype_of<T>)), ...); };
  if constexpr (kind.of_floats) all.template operator()<float, double, Half, BFloat16>();
  if constexpr (kind.of_integers) all.template operator()<int64_t, int32_t, int8_t, uint8_t>();
  if constexpr (kind.of_bool) all.template operator()<bool>();
}

/// The scalar arguments of an operation in the type that it computes in.
template <class C> functor::Params<C> params_of(const PointwiseArgs& args) { return {args.p.to<C>(), args.q.to<C>()}; }

}  // namespace lockstep::on_cuda
