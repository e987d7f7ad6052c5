// Derivatives of pointwise operations with one operand.
#include "tensor/cuda/pointwise.h"
#include "tensor/cuda/pointwise_table.h"
#include "tensor/cuda/trigonometry.h"

namespace lockstep::on_cuda {
namespace {

template <class F, class C> struct Grad {
  functor::Params<C> a;
  __device__ C operator()(C g) const { return F::grad(g, C(0), a); }
  __device__ C operator()(C g, C kept) const { return F::grad(g, kept, a); }
};

template <> struct Grad<functor::Sin, float> {
  functor::Params<float> a;
  __device__ float operator()(float g, float x) const { return g * sine(x, 1); }
};
template <> struct Grad<functor::Cos, float> {
  functor::Params<float> a;
  __device__ float operator()(float g, float x) const { return -g * sine(x, 0); }
};

template <class C> struct Grad<functor::PowScalar, C> {
  functor::Params<C> a;
  __device__ C operator()(C g, C x) const {
    if (a.p == C(1)) return g;
    if (a.p == C(2)) return g * (C(2) * x);
    if (a.p == C(3)) return g * (C(3) * (x * x));
    if (a.p == C(0.5)) return g * (C(0.5) / std::sqrt(x));
    if (a.p == C(-1)) return -g / (x * x);
    return functor::PowScalar::grad(g, x, a);
  }
};

template <class F, class T> void run(const PointwiseArgs& args, const Tensor* const* in, Tensor& out) {
  const Grad<F, Computed<T>> fn{params_of<Computed<T>>(args)};
  if constexpr (F::reads == functor::Reads::none || F::reads == functor::Reads::zero)
    run_pointwise<T, T>("pointwise_grad", fn, out, *in[0]);
  else run_pointwise<T, T, T>("pointwise_grad", fn, out, *in[0], *in[1]);
}

template <class F> constexpr PointwiseRow row() {
  PointwiseRow row{};
  each_type<floats>([&]<class T>(int dtype) { row[dtype] = run<F, T>; });
  return row;
}

constexpr PointwiseTable make_table() {
  PointwiseTable table{};
#define LOCKSTEP_UNARY(name, F, types) \
  if (std::string_view(#types) != "logic") table[size_t(PointwiseOp::name)] = row<functor::F>();
#define LOCKSTEP_UNARY1(name, F, types, p, d) LOCKSTEP_UNARY(name, F, types)
#define LOCKSTEP_UNARY2(name, F, types, p, d, q, e) LOCKSTEP_UNARY(name, F, types)
#include "tensor/pointwise.def"
  return table;
}

}  // namespace

constinit const PointwiseTable unary_grads = make_table();

}  // namespace lockstep::on_cuda
