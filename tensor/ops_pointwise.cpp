// Pointwise operations: check arguments, allocate the result, call the kernel. Most are generated from pointwise.def.
#include <cmath>
#include <iterator>
#include <limits>

#include "tensor/complex.h"
#include "tensor/functors.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"

namespace lockstep {
namespace {

constexpr const char* names[][2] = {  // [op][0]: the operation's name, [op][1]: the name of its derivatives
#define LOCKSTEP_UNARY(name, functor, types) {#name, #name " derivative"},
#define LOCKSTEP_UNARY1(name, functor, types, p, d) {#name, #name " derivative"},
#define LOCKSTEP_UNARY2(name, functor, types, p, d, q, e) {#name, #name " derivative"},
#define LOCKSTEP_BINARY(name, functor, types) {#name, #name " derivative"},
#define LOCKSTEP_COMPARE(name, functor) {#name, #name},
#include "tensor/pointwise.def"
    {"where", "where derivative"},
    {"addcmul", "addcmul derivative"},
    {"lerp", "lerp derivative"}};
static_assert(std::size(names) == size_t(PointwiseOp::count));

struct Operands {
  bool of_floats, of_integers, of_bool;
  const char* words;
};
constexpr Operands floats{true, false, false, "a floating dtype"},
    numbers{true, true, false, "a floating or integer dtype"};
constexpr Operands logic{false, false, true, "dtype bool"}, everything{true, true, true, "any dtype"};

void check_kind(const char* name, const Operands& kind, DType dtype) {
  if (is_complex(dtype)) fail_complex(name, dtype);
  const bool fits = is_floating(dtype) ? kind.of_floats : dtype == boolean ? kind.of_bool : kind.of_integers;
  LOCKSTEP_CHECK(fits, "[", name, "] expected ", kind.words, ", got ", dtype, "; convert it with .to(",
                 kind.of_floats ? "f32)" : "boolean)");
}

void check_pair(const char* name, const Tensor& a, const Tensor& b) {
  check_defined(name, a);
  check_defined(name, b);
  LOCKSTEP_CHECK(a.dtype() == b.dtype(), "[", name, "] expected operands of one dtype, got ", a.dtype(), " and ",
                 b.dtype(), "; convert with .to(dtype)");
  check_same_device(name, a, b);
}

// Error if a scalar operand does not fit an integer dtype. Two exceptions: clamp accepts infinite bounds, and other
// operations on u8 accept negative scalars, because u8 results wrap around (-3 acts like 253).
void check_parameters(const char* name, PointwiseOp op, DType dtype, const PointwiseArgs& args) {
  constexpr double open = std::numeric_limits<double>::infinity();
  const bool is_clamp = op == PointwiseOp::clamp;
  const auto check = [&](const Scalar& value, double no_bound) {
    if (is_clamp ? value.real() == no_bound : dtype == u8 && (-value).fits(u8)) return;
    check_fits(name, value, dtype);
  };
  if (is_floating(dtype)) return;
  check(args.p, -open), check(args.q, open);
}

// Error for an integer division by 0. Reads the divisor, so it waits for the device.
void check_divisor(const char* name, PointwiseOp op, const Tensor& b) {
  if ((op != PointwiseOp::floor_divide && op != PointwiseOp::remainder) || is_floating(b.dtype())) return;
  LOCKSTEP_CHECK(all(b).item<bool>(), "[", name, "] expected a divisor without zeros, got a 0 among ", b.dtype(), " ",
                 b.shape(), "; replace the zeros, or divide in floating point");
}

template <class... Inputs>
void run(PointwiseOp op, PointwisePart part, const PointwiseArgs& args, Tensor& out, const Inputs&... inputs) {
  const Tensor* in[] = {&inputs...};
  kernels::pointwise.as(names[size_t(op)][part != PointwisePart::value], out.device(), op, part, args, in,
                        int(sizeof...(inputs)), out);
}

Tensor result(const Shape& shape, DType dtype, Device device) {
  return empty(shape, {.dtype = dtype, .device = device});
}

// --- in place ---

// Returns b, an operand of an in-place operation on x, or a clone of b if the operation could read elements of b after
// writing them: b's memory may overlap x's, and b is not the same view as x.
Tensor apart_from(const Tensor& x, const Tensor& b) {
  if (!(b.storage() == x.storage())) return b;
  if (b.offset() == x.offset() && b.shape() == x.shape() && b.strides() == x.strides()) return b;
  const auto last = [](const Tensor& t) {
    int64_t place = t.offset();
    for (int d = 0; d < t.dim(); ++d) place += (t.shape()[d] - 1) * t.strides()[d];
    return place;
  };
  const bool disjoint = x.numel() == 0 || b.numel() == 0 || last(b) < x.offset() || last(x) < b.offset();
  return disjoint && b.dtype() == x.dtype() ? b : b.clone();
}

void check_broadcast_to(const char* name, const Tensor& x, const Tensor& b) {
  LOCKSTEP_CHECK(broadcasts_to(b.shape(), x.shape()), "[", name, "] expected b to broadcast to ", x.shape(), ", got ",
                 b.shape(), "; reshape b");
}

// --- the four forms of operations: unary and binary, each also in place ---

Tensor unary(const char* name, PointwiseOp op, const Operands& kind, const Tensor& x, const PointwiseArgs& args = {}) {
  check_defined(name, x);
  if (is_complex(x.dtype())) [[unlikely]]
    return complex_unary(name, op, args.p, x);
  check_kind(name, kind, x.dtype());
  check_parameters(name, op, x.dtype(), args);
  Tensor out = result(x.shape(), x.dtype(), x.device());
  run(op, PointwisePart::value, args, out, x);
  return out;
}

const Tensor& unary_in_place(const char* name, PointwiseOp op, const Operands& kind, const Tensor& x,
                             const PointwiseArgs& args = {}) {
  check_defined(name, x);
  check_kind(name, kind, x.dtype());
  check_parameters(name, op, x.dtype(), args);
  check_writable(name, x);
  x.storage()->bump_version(name);
  Tensor out = x;
  run(op, PointwisePart::value, args, out, x);
  return x;
}

Tensor binary(const char* name, PointwiseOp op, const Operands& kind, const Tensor& a, const Tensor& b,
              bool to_bool = false) {
  if (any_complex(a, b)) [[unlikely]]
    return complex_binary(name, op, a, b);
  check_pair(name, a, b);
  check_kind(name, kind, a.dtype());
  check_divisor(name, op, b);
  const DType dtype = to_bool ? boolean : a.dtype();
  Tensor out = a.shape() == b.shape() ? result(a.shape(), dtype, a.device())
                                      : result(broadcast_shapes(name, a.shape(), b.shape()), dtype, a.device());
  run(op, PointwisePart::value, {}, out, a, b);
  return out;
}

const Tensor& binary_in_place(const char* name, PointwiseOp op, const Operands& kind, const Tensor& x,
                              const Tensor& b) {
  if (!any_complex(x, b)) [[likely]] {
    check_pair(name, x, b);
    check_kind(name, kind, x.dtype());
    check_divisor(name, op, b);
  }
  check_broadcast_to(name, x, b);
  check_writable(name, x);
  if (any_complex(x, b)) [[unlikely]]
    return complex_in_place(name, op, x, b);
  const Tensor other = apart_from(x, b);
  x.storage()->bump_version(name);
  Tensor out = x;
  run(op, PointwisePart::value, {}, out, x, other);
  return x;
}

// --- for autograd ---

enum class Form { unary, binary, other };
struct GradInfo {
  Form form = Form::other;
  const char* name = "";
  functor::Reads reads = functor::Reads::none;  // unary
  int reads0 = 0, reads1 = 0;                   // binary
};

template <class F> constexpr GradInfo unary_info(const char* name) { return {Form::unary, name, F::reads, 0, 0}; }
template <class F> constexpr GradInfo binary_info(const char* name) {
  return {Form::binary, name, functor::Reads::none, F::reads_grad0, F::reads_grad1};
}

GradInfo grad_info(PointwiseOp op) {
  switch (op) {
// clang-format off
#define LOCKSTEP_UNARY(name, F, types) case PointwiseOp::name: return unary_info<functor::F>(#name);
#define LOCKSTEP_UNARY1(name, F, types, p, d) case PointwiseOp::name: return unary_info<functor::F>(#name);
#define LOCKSTEP_UNARY2(name, F, types, p, d, q, e) case PointwiseOp::name: return unary_info<functor::F>(#name);
#define LOCKSTEP_BINARY(name, F, types) case PointwiseOp::name: return binary_info<functor::F>(#name);
// clang-format on
#include "tensor/pointwise.def"
    default: return {};
  }
}

}  // namespace

#define LOCKSTEP_UNARY(name, functor, types)                                         \
  Tensor name(const Tensor& x) { return unary(#name, PointwiseOp::name, types, x); } \
  const Tensor& name##_(const Tensor& x) { return unary_in_place(#name "_", PointwiseOp::name, types, x); }
#define LOCKSTEP_UNARY1(name, functor, types, p, d)                                                    \
  Tensor name(const Tensor& x, Scalar p) { return unary(#name, PointwiseOp::name, types, x, {p, 0}); } \
  const Tensor& name##_(const Tensor& x, Scalar p) {                                                   \
    return unary_in_place(#name "_", PointwiseOp::name, types, x, {p, 0});                             \
  }
#define LOCKSTEP_UNARY2(name, functor, types, p, d, q, e)                                                        \
  Tensor name(const Tensor& x, Scalar p, Scalar q) { return unary(#name, PointwiseOp::name, types, x, {p, q}); } \
  const Tensor& name##_(const Tensor& x, Scalar p, Scalar q) {                                                   \
    return unary_in_place(#name "_", PointwiseOp::name, types, x, {p, q});                                       \
  }
#define LOCKSTEP_BINARY(name, functor, types)                                                             \
  Tensor name(const Tensor& a, const Tensor& b) { return binary(#name, PointwiseOp::name, types, a, b); } \
  const Tensor& name##_(const Tensor& a, const Tensor& b) {                                               \
    return binary_in_place(#name "_", PointwiseOp::name, types, a, b);                                    \
  }
#define LOCKSTEP_COMPARE(name, functor)                                                                              \
  Tensor name(const Tensor& a, const Tensor& b) { return binary(#name, PointwiseOp::name, everything, a, b, true); } \
  Tensor name(const Tensor& x, Scalar s) {                                                                           \
    check_defined(#name, x);                                                                                         \
    const Tensor held = x.dtype() != boolean && s.fits(x.dtype()) ? x : x.to(f64);                                   \
    return name(held, full({}, s, {held.dtype(), held.device()}));                                                   \
  }
#include "tensor/pointwise.def"

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  check_defined("where", condition);
  check_pair("where", a, b);
  LOCKSTEP_CHECK(condition.dtype() == boolean, "[where] expected condition of dtype bool, got ", condition.dtype(),
                 "; convert it with .to(boolean)");
  check_same_device("where", condition, a);
  if (is_complex(a.dtype())) return complex_where(condition, a, b);
  const Shape shape = broadcast_shapes("where", condition.shape(), broadcast_shapes("where", a.shape(), b.shape()));
  Tensor out = result(shape, a.dtype(), a.device());
  run(PointwiseOp::where, PointwisePart::value, {}, out, condition, a, b);
  return out;
}

Tensor addcmul(const Tensor& a, const Tensor& b, const Tensor& c, Scalar value) {
  check_pair("addcmul", a, b);
  check_pair("addcmul", a, c);
  check_kind("addcmul", numbers, a.dtype());
  check_parameters("addcmul", PointwiseOp::addcmul, a.dtype(), {value});
  const Shape shape = broadcast_shapes("addcmul", a.shape(), broadcast_shapes("addcmul", b.shape(), c.shape()));
  Tensor out = result(shape, a.dtype(), a.device());
  run(PointwiseOp::addcmul, PointwisePart::value, {value, 0}, out, a, b, c);
  return out;
}

Tensor lerp(const Tensor& a, const Tensor& b, double weight) {
  check_pair("lerp", a, b);
  check_kind("lerp", floats, a.dtype());
  Tensor out = result(broadcast_shapes("lerp", a.shape(), b.shape()), a.dtype(), a.device());
  run(PointwiseOp::lerp, PointwisePart::value, {weight, 0}, out, a, b);
  return out;
}

const Tensor& add_(const Tensor& x, const Tensor& b, Scalar alpha) {
  if (alpha == 1) return add_(x, b);
  if (any_complex(x, b)) return add_(x, mul_scalar(b, alpha));
  check_pair("add_", x, b);
  check_kind("add_", numbers, x.dtype());
  check_parameters("add_", PointwiseOp::addcmul, x.dtype(), {alpha});
  check_broadcast_to("add_", x, b);
  check_writable("add_", x);
  const Tensor other = apart_from(x, b), one = ones({}, {.dtype = x.dtype(), .device = x.device()});
  x.storage()->bump_version("add_");
  Tensor out = x;
  run(PointwiseOp::addcmul, PointwisePart::value, {alpha, 0}, out, x, other, one);
  return x;
}

Tensor mul_to(const Tensor& a, const Tensor& b, DType dtype) {
  check_pair("mul_to", a, b);
  LOCKSTEP_CHECK(a.dtype() == f32 && (dtype == f16 || dtype == bf16),
                 "[mul_to] expected operands in f32 and a result in f16 or bf16, got ", a.dtype(), " and ", dtype,
                 "; use mul() for one dtype");
  Tensor out = result(broadcast_shapes("mul_to", a.shape(), b.shape()), dtype, a.device());
  run(PointwiseOp::mul, PointwisePart::value, {}, out, a, b);
  return out;
}

Tensor isnan(const Tensor& x) {
  check_defined("isnan", x);
  return ne(x, x);  // only NaN differs from itself
}

Tensor isfinite(const Tensor& x) {
  check_defined("isfinite", x);
  if (!is_floating(x.dtype())) return eq(x, x);
  return lt(abs(x), full({}, std::numeric_limits<double>::infinity(), {x.dtype(), x.device()}));
}

Tensor pointwise_grad(PointwiseOp op, PointwisePart part, const PointwiseArgs& args, const Tensor& grad,
                      const Tensor& a, const Tensor& b) {
  const GradInfo info = grad_info(op);
  LOCKSTEP_CHECK(info.form != Form::other && part != PointwisePart::value &&
                     (info.form == Form::binary || part == PointwisePart::grad0),
                 "[pointwise_grad] expected an operation and part with a derivative, got operation ", int(op), " part ",
                 int(part), "; see PointwiseOp and PointwisePart for the numbers");
  check_floating("pointwise_grad", grad);
  // These have the derivative 1.
  if (op == PointwiseOp::add || op == PointwiseOp::add_scalar || op == PointwiseOp::sub_scalar) return grad;
  if (op == PointwiseOp::sub && part == PointwisePart::grad0) return grad;

  const bool unary_form = info.form == Form::unary;
  const int mask = part == PointwisePart::grad0 ? info.reads0 : info.reads1;
  const bool reads_a = unary_form ? info.reads == functor::Reads::input || info.reads == functor::Reads::output
                                  : mask & functor::reads_a;
  const bool reads_b = !unary_form && (mask & functor::reads_b);
  if (reads_a) check_pair(info.name, grad, a), check_broadcast_to(info.name, grad, a);
  if (reads_b) check_pair(info.name, grad, b), check_broadcast_to(info.name, grad, b);
  // A binary kernel takes two operands even if it reads only one; pass grad for the other. A binary operation needs
  // grad for both of its derivatives, so only a unary operation overwrites grad.
  const Tensor &first = reads_a ? a : grad, &second = reads_b ? b : grad;
  const bool reuse = unary_form && grad.is_exclusive() && grad.is_contiguous();
  Tensor out = reuse ? grad : result(grad.shape(), grad.dtype(), grad.device());
  if (!unary_form) run(op, part, args, out, grad, first, second);
  else if (reads_a) run(op, part, args, out, grad, first);
  else run(op, part, args, out, grad);
  return out;
}

PointwiseGrads pointwise_grads(PointwiseOp op, const Tensor& grad, const Tensor& a, const Tensor& b) {
  const GradInfo info = grad_info(op);
  LOCKSTEP_CHECK(info.reads0 != functor::nothing && info.reads1 != functor::nothing,
                 "[pointwise_grads] expected an operation whose derivatives read an operand, got operation ", int(op),
                 "; use pointwise_grad() for each operand");
  check_floating("pointwise_grads", grad);
  const int mask = info.reads0 | info.reads1;  // operands that are read; the caller may have released the other one
  const Tensor &first = mask & functor::reads_a ? a : grad, &second = mask & functor::reads_b ? b : grad;
  for (const Tensor* x : {&first, &second}) check_pair(info.name, grad, *x), check_broadcast_to(info.name, grad, *x);
  const bool reuse = grad.is_exclusive() && grad.is_contiguous();
  PointwiseGrads made{reuse ? grad : result(grad.shape(), grad.dtype(), grad.device()),
                      result(grad.shape(), grad.dtype(), grad.device())};
  kernels::pointwise_grads.as(names[size_t(op)][1], grad.device(), op, grad, first, second, made.a, made.b);
  return made;
}

}  // namespace lockstep
