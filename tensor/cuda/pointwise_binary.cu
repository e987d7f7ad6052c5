// Values and derivatives of pointwise operations with two and three operands.
#include "tensor/cuda/pointwise_number.h"

namespace lockstep::on_cuda {
namespace {

template <class F, class C> struct Value {
  template <class X> __device__ auto operator()(X a, X b) const { return plain(F::value(C(a), C(b))); }
};

/// The derivative with respect to operand `part` (0 or 1). The kernel passes only the operands that the formula reads.
template <class F, class C, int part> struct Grad {
  static constexpr int reads = part == 0 ? F::reads_grad0 : F::reads_grad1;
  __device__ static C call(C g, C a, C b) {
    if constexpr (part == 0) return F::grad0(g, a, b);
    else return F::grad1(g, a, b);
  }
  template <class X> __device__ X operator()(X g) const { return plain(call(C(g), C(0), C(0))); }
  template <class X> __device__ X operator()(X g, X x) const {
    return plain(reads == functor::reads_a ? call(C(g), C(x), C(0)) : call(C(g), C(0), C(x)));
  }
  template <class X> __device__ X operator()(X g, X a, X b) const { return plain(call(C(g), C(a), C(b))); }
};

template <class C> struct Where {
  __device__ C operator()(uint8_t condition, C a, C b) const { return condition ? a : b; }
};
template <class C> struct Addcmul {
  functor::Params<C> p;
  __device__ C operator()(C a, C b, C c) const { return functor::Addcmul::value(a, b, c, p); }
};
template <class C> struct Lerp {
  functor::Params<C> p;
  __device__ C operator()(C a, C b) const { return functor::Lerp::value(a, b, p); }
};

template <class F, class T> void value(const PointwiseArgs&, const Tensor* const* in, Tensor& out) {
  if constexpr (std::is_same_v<F, functor::Mul> && std::is_same_v<T, float>) {
    constexpr Value<F, float> fn;
    if (out.dtype() == f16) return run_pointwise<Half, float, float>("pointwise", fn, out, *in[0], *in[1]);
    if (out.dtype() == bf16) return run_pointwise<BFloat16, float, float>("pointwise", fn, out, *in[0], *in[1]);
  }
  run_pointwise<T, T, T>("pointwise", Value<F, Number<F, T>>{}, out, *in[0], *in[1]);
}
template <class F, class T> void compare(const PointwiseArgs&, const Tensor* const* in, Tensor& out) {
  run_pointwise<bool, T, T>("pointwise", Value<F, Computed<T>>{}, out, *in[0], *in[1]);
}
template <class F, class T, int part> void grad(const PointwiseArgs&, const Tensor* const* in, Tensor& out) {
  const Grad<F, Number<F, T>, part> fn;
  if constexpr (fn.reads == functor::nothing) run_pointwise<T, T>("pointwise_grad", fn, out, *in[0]);
  else if constexpr (fn.reads == functor::both)
    run_pointwise<T, T, T, T>("pointwise_grad", fn, out, *in[0], *in[1], *in[2]);
  else run_pointwise<T, T, T>("pointwise_grad", fn, out, *in[0], *in[fn.reads == functor::reads_a ? 1 : 2]);
}
/// Functor that computes both derivatives of a binary operation.
template <class F, class C> struct Grads {
  template <class X> __device__ void operator()(X g, X a, X b, X* made) const {
    made[0] = plain(F::grad0(C(g), C(a), C(b)));
    made[1] = plain(F::grad1(C(g), C(a), C(b)));
  }
};
template <class F, class T>
void grads(const Tensor& grad, const Tensor& a, const Tensor& b, Tensor& grad_a, Tensor& grad_b) {
  run_pointwise_pair<T>("pointwise_grads", Grads<F, Number<F, T>>{}, grad, a, b, grad_a, grad_b);
}
template <class T> void where(const PointwiseArgs&, const Tensor* const* in, Tensor& out) {
  run_pointwise<T, bool, T, T>("where", Where<Computed<T>>{}, out, *in[0], *in[1], *in[2]);
}
template <class T> void addcmul(const PointwiseArgs& args, const Tensor* const* in, Tensor& out) {
  run_pointwise<T, T, T, T>("addcmul", Addcmul<Computed<T>>{params_of<Computed<T>>(args)}, out, *in[0], *in[1], *in[2]);
}
template <class T> void lerp(const PointwiseArgs& args, const Tensor* const* in, Tensor& out) {
  run_pointwise<T, T, T>("lerp", Lerp<Computed<T>>{params_of<Computed<T>>(args)}, out, *in[0], *in[1]);
}

template <PointwiseKind kind, class Make> constexpr PointwiseRow row(Make make) {
  PointwiseRow row{};
  each_type<kind>([&]<class T>(int dtype) { row[dtype] = make.template operator()<T>(); });
  return row;
}

constexpr PointwiseTable make_values() {
  PointwiseTable table{};
#define LOCKSTEP_BINARY(name, F, types) \
  table[size_t(PointwiseOp::name)] = row<types>([]<class T>() { return PointwiseFn(value<functor::F, T>); });
#define LOCKSTEP_COMPARE(name, F) \
  table[size_t(PointwiseOp::name)] = row<everything>([]<class T>() { return PointwiseFn(compare<functor::F, T>); });
#include "tensor/pointwise.def"
  table[size_t(PointwiseOp::where)] = row<everything>([]<class T>() { return PointwiseFn(where<T>); });
  table[size_t(PointwiseOp::addcmul)] = row<numbers>([]<class T>() { return PointwiseFn(addcmul<T>); });
  table[size_t(PointwiseOp::lerp)] = row<floats>([]<class T>() { return PointwiseFn(lerp<T>); });
  return table;
}

template <int part> constexpr PointwiseTable make_grads() {
  PointwiseTable table{};
#define LOCKSTEP_BINARY(name, F, types) \
  table[size_t(PointwiseOp::name)] = row<floats>([]<class T>() { return PointwiseFn(grad<functor::F, T, part>); });
#include "tensor/pointwise.def"
  return table;
}

template <class F> constexpr std::array<PointwisePairFn, dtypes> pair_row() {
  std::array<PointwisePairFn, dtypes> row{};
  if constexpr (F::reads_grad0 != functor::nothing && F::reads_grad1 != functor::nothing)
    each_type<floats>([&]<class T>(int dtype) { row[dtype] = grads<F, T>; });
  return row;
}

constexpr auto make_pairs() {
  std::array<std::array<PointwisePairFn, dtypes>, size_t(PointwiseOp::count)> table{};
#define LOCKSTEP_BINARY(name, F, types) table[size_t(PointwiseOp::name)] = pair_row<functor::F>();
#include "tensor/pointwise.def"
  return table;
}

}  // namespace

constinit const PointwiseTable binary_values = make_values();
constinit const PointwiseTable binary_grads0 = make_grads<0>();
constinit const PointwiseTable binary_grads1 = make_grads<1>();
constinit const std::array<std::array<PointwisePairFn, dtypes>, size_t(PointwiseOp::count)> binary_grads = make_pairs();

}  // namespace lockstep::on_cuda
