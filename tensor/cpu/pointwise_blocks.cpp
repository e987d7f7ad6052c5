// The loops of pointwise operations: each is a functor in a loop without branches, which the compiler vectorises.
#include "tensor/cpu/pointwise_blocks.h"

#include <array>

#include "tensor/convert.h"
#include "tensor/functors.h"

namespace lockstep::on_cpu {
namespace {

using functor::Params;

// The types that an operation computes in. pointwise.def gives each operation a kind: `floats`, `numbers` or `logic`.
struct Kind {
  bool of_floats, of_integers, of_bool;
};
constexpr Kind floats{true, false, false}, numbers{true, true, false}, logic{false, false, true};

template <class T> Params<T> params_of(const PointwiseArgs& args) { return {args.p.to<T>(), args.q.to<T>()}; }

// out[i] = fn(i) over whole vectors. The pragma `ivdep` is correct: out is one of the inputs or overlaps none of them.
template <class Out, class Fn> [[gnu::always_inline]] inline void each(void* out, int64_t n, Fn fn) {
  Out* to = static_cast<Out*>(out);
  n = n / block_step * block_step;  // tells the compiler that there is no remainder
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = Out(fn(i));
}

template <class T> const T* input(const void* const* in, int i) { return static_cast<const T*>(in[i]); }

// --- one operand ---

template <class F, class T> constexpr bool has_large = std::is_same_v<T, float>&& requires { F::large_value(0.0); };

template <class F, class T> bool any_large(const T* x, int64_t n) {
  int large = 0;
  for (int64_t i = 0; i < n; ++i) large |= F::is_large(x[i]);
  return large != 0;
}

template <class F, class T> void value1(const void* const* in, void* out, int64_t n, const PointwiseArgs& args) {
  const T* x = input<T>(in, 0);
  const Params<T> params = params_of<T>(args);
  if constexpr (has_large<F, T>) {
    if (any_large<F>(x, n)) [[unlikely]] {
      T* to = static_cast<T*>(out);
      for (int64_t i = 0; i < n; ++i) to[i] = F::is_large(x[i]) ? T(F::large_value(x[i])) : F::value(x[i], params);
      return;
    }
  }
  each<T>(out, n, [=](int64_t i) { return F::value(x[i], params); });
}

template <class F, class T> void grad1(const void* const* in, void* out, int64_t n, const PointwiseArgs& args) {
  const T* g = input<T>(in, 0);
  const Params<T> params = params_of<T>(args);
  if constexpr (F::reads == functor::Reads::none || F::reads == functor::Reads::zero) {
    each<T>(out, n, [=](int64_t i) { return F::grad(g[i], T(0), params); });
  } else {
    const T* x = input<T>(in, 1);
    if constexpr (has_large<F, T>) {
      if (any_large<F>(x, n)) [[unlikely]] {
        T* to = static_cast<T*>(out);
        for (int64_t i = 0; i < n; ++i)
          to[i] = F::is_large(x[i]) ? T(F::large_grad(g[i], x[i])) : F::grad(g[i], x[i], params);
        return;
      }
    }
    each<T>(out, n, [=](int64_t i) { return F::grad(g[i], x[i], params); });
  }
}

// Common exponents have exact and fast formulas. All other exponents use std::pow.
template <class T> void pow_value(const void* const* in, void* out, int64_t n, const PointwiseArgs& args) {
  const T* x = input<T>(in, 0);
  const double p = args.p.real();
  if (p == 2) return each<T>(out, n, [=](int64_t i) { return x[i] * x[i]; });
  if (p == 3) return each<T>(out, n, [=](int64_t i) { return x[i] * x[i] * x[i]; });
  if (p == 0.5) return each<T>(out, n, [=](int64_t i) { return std::sqrt(x[i]); });
  if (p == -0.5) return each<T>(out, n, [=](int64_t i) { return T(1) / std::sqrt(x[i]); });
  if (p == -1) return each<T>(out, n, [=](int64_t i) { return T(1) / x[i]; });
  value1<functor::PowScalar, T>(in, out, n, args);
}

template <class T> void pow_grad(const void* const* in, void* out, int64_t n, const PointwiseArgs& args) {
  const T* g = input<T>(in, 0);
  const T* x = input<T>(in, 1);
  const double p = args.p.real();
  if (p == 1) return each<T>(out, n, [=](int64_t i) { return g[i]; });
  if (p == 2) return each<T>(out, n, [=](int64_t i) { return g[i] * (T(2) * x[i]); });
  if (p == 3) return each<T>(out, n, [=](int64_t i) { return g[i] * (T(3) * (x[i] * x[i])); });
  if (p == 0.5) return each<T>(out, n, [=](int64_t i) { return g[i] * (T(0.5) / std::sqrt(x[i])); });
  if (p == -1) return each<T>(out, n, [=](int64_t i) { return -g[i] / (x[i] * x[i]); });
  grad1<functor::PowScalar, T>(in, out, n, args);
}

// --- two and three operands ---

template <class F, class T, class Out> void value2(const void* const* in, void* out, int64_t n, const PointwiseArgs&) {
  const T *a = input<T>(in, 0), *b = input<T>(in, 1);
  each<Out>(out, n, [=](int64_t i) { return F::value(a[i], b[i]); });
}

template <class F, class T, int part> void grad2(const void* const* in, void* out, int64_t n, const PointwiseArgs&) {
  const T *g = input<T>(in, 0), *a = input<T>(in, 1), *b = input<T>(in, 2);
  each<T>(out, n, [=](int64_t i) {
    if constexpr (part == 0) return F::grad0(g[i], a[i], b[i]);
    else return F::grad1(g[i], a[i], b[i]);
  });
}

template <class F, class T> void value3(const void* const* in, void* out, int64_t n, const PointwiseArgs& args) {
  const T *a = input<T>(in, 0), *b = input<T>(in, 1), *c = input<T>(in, 2);
  const Params<T> params = params_of<T>(args);
  each<T>(out, n, [=](int64_t i) { return F::value(a[i], b[i], c[i], params); });
}

template <class T> void lerp2(const void* const* in, void* out, int64_t n, const PointwiseArgs& args) {
  const T *a = input<T>(in, 0), *b = input<T>(in, 1);
  const Params<T> params = params_of<T>(args);
  each<T>(out, n, [=](int64_t i) { return functor::Lerp::value(a[i], b[i], params); });
}

template <class T> void where3(const void* const* in, void* out, int64_t n, const PointwiseArgs&) {
  const uint8_t* condition = input<uint8_t>(in, 0);
  const T *a = input<T>(in, 1), *b = input<T>(in, 2);
  each<T>(out, n, [=](int64_t i) { return condition[i] ? a[i] : b[i]; });
}

// --- the table of block functions ---

// For every compute type T of a kind, calls add<T>(i), where i is the enumerator of ComputeType that stands for T.
template <Kind kind, class Fn> constexpr void each_type(Fn add) {
  if constexpr (kind.of_floats) {
    add.template operator()<float>(int(ComputeType::f32));
    add.template operator()<double>(int(ComputeType::f64));
  }
  if constexpr (kind.of_integers) {
    add.template operator()<int64_t>(int(ComputeType::i64));
    add.template operator()<int32_t>(int(ComputeType::i32));
  }
  if constexpr (kind.of_bool) add.template operator()<uint8_t>(int(ComputeType::u8));
}

template <class F> constexpr bool is_costly = requires { F::costly; };

template <class F, Kind kind> constexpr PointwiseEntry unary() {
  PointwiseEntry entry{.costly = is_costly<F>};
  each_type<kind>([&]<class T>(int type) {
    constexpr bool power = std::is_same_v<F, functor::PowScalar>;
    if constexpr (power) entry.functions[0][type] = pow_value<T>;
    else entry.functions[0][type] = value1<F, T>;
    if constexpr (power) entry.functions[1][type] = pow_grad<T>;
    else if constexpr (std::is_floating_point_v<T>) entry.functions[1][type] = grad1<F, T>;
  });
  return entry;
}

template <class F, Kind kind> constexpr PointwiseEntry binary() {
  PointwiseEntry entry{.costly = is_costly<F>};
  each_type<kind>([&]<class T>(int type) {
    entry.functions[0][type] = value2<F, T, T>;
    if constexpr (std::is_floating_point_v<T>) {
      entry.functions[1][type] = grad2<F, T, 0>;
      entry.functions[2][type] = grad2<F, T, 1>;
    }
  });
  return entry;
}

constexpr Kind everything{true, true, true};

template <class F> constexpr PointwiseEntry compare() {
  PointwiseEntry entry;
  each_type<everything>([&]<class T>(int type) { entry.functions[0][type] = value2<F, T, uint8_t>; });
  return entry;
}

constexpr auto make_table() {
  std::array<PointwiseEntry, size_t(PointwiseOp::count)> table;
  const auto at = [&](PointwiseOp op) -> PointwiseEntry& { return table[size_t(op)]; };
#define LOCKSTEP_UNARY(name, F, types) at(PointwiseOp::name) = unary<functor::F, types>();
#define LOCKSTEP_UNARY1(name, F, types, p, d) at(PointwiseOp::name) = unary<functor::F, types>();
#define LOCKSTEP_UNARY2(name, F, types, p, d, q, e) at(PointwiseOp::name) = unary<functor::F, types>();
#define LOCKSTEP_BINARY(name, F, types) at(PointwiseOp::name) = binary<functor::F, types>();
#define LOCKSTEP_COMPARE(name, F) at(PointwiseOp::name) = compare<functor::F>();
#include "tensor/pointwise.def"
  each_type<everything>([&]<class T>(int type) { at(PointwiseOp::where).functions[0][type] = where3<T>; });
  each_type<numbers>(
      [&]<class T>(int type) { at(PointwiseOp::addcmul).functions[0][type] = value3<functor::Addcmul, T>; });
  each_type<floats>([&]<class T>(int type) { at(PointwiseOp::lerp).functions[0][type] = lerp2<T>; });
  return table;
}

constinit const auto table = make_table();

}  // namespace

const PointwiseEntry& pointwise_entry(PointwiseOp op) { return table[size_t(op)]; }

}  // namespace lockstep::on_cpu
