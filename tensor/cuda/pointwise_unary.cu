// Values of pointwise operations with one operand.
#include "tensor/cuda/pointwise_number.h"
#include "tensor/cuda/trigonometry.h"

namespace lockstep::on_cuda {
namespace {

template <class F, class C> struct Value {
  functor::Params<C> a;
  template <class X> __device__ X operator()(X x) const { return plain(F::value(C(x), a)); }
};

template <> struct Value<functor::Sin, float> {
  functor::Params<float> a;
  __device__ float operator()(float x) const { return sine(x, 0); }
};
template <> struct Value<functor::Cos, float> {
  functor::Params<float> a;
  __device__ float operator()(float x) const { return sine(x, 1); }
};

// x to the power a.p. Common exponents avoid std::pow, which is slower.
template <class C> struct Value<functor::PowScalar, C> {
  functor::Params<C> a;
  __device__ C operator()(C x) const {
    if (a.p == C(2)) return x * x;
    if (a.p == C(3)) return x * x * x;
    if (a.p == C(0.5)) return std::sqrt(x);
    if (a.p == C(-0.5)) return C(1) / std::sqrt(x);
    if (a.p == C(-1)) return C(1) / x;
    return functor::PowScalar::value(x, a);
  }
};

template <class F, class T> void run(const PointwiseArgs& args, const Tensor* const* in, Tensor& out) {
  run_pointwise<T, T>("pointwise", Value<F, Number<F, T>>{params_for<F, T>(args)}, out, *in[0]);
}

template <class F, PointwiseKind kind> constexpr PointwiseRow row() {
  PointwiseRow row{};
  each_type<kind>([&]<class T>(int dtype) { row[dtype] = run<F, T>; });
  return row;
}

constexpr PointwiseTable make_table() {
  PointwiseTable table{};
#define LOCKSTEP_UNARY(name, F, types) table[size_t(PointwiseOp::name)] = row<functor::F, types>();
#define LOCKSTEP_UNARY1(name, F, types, p, d) LOCKSTEP_UNARY(name, F, types)
#define LOCKSTEP_UNARY2(name, F, types, p, d, q, e) LOCKSTEP_UNARY(name, F, types)
#include "tensor/pointwise.def"
  return table;
}

}  // namespace

constinit const PointwiseTable unary_values = make_table();

}  // namespace lockstep::on_cuda
