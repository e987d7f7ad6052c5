// Arithmetic of symbols, and the derivatives of pointwise operations on the tape. See symbol.h.
#include "autograd/symbol.h"

#include <cmath>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "tensor/functors.h"

namespace lockstep {
namespace symbolic {
namespace {

bool is_constant(const Symbol& x) { return !x.variable(); }

Tensor filled_like(double value, const Variable& x) { return full({}, value, {x.dtype(), x.device()}); }

/// x as a variable. A constant becomes a scalar with the dtype and device of `like`.
Variable variable_of(const Symbol& x, const Variable& like) {
  return is_constant(x) ? Variable(filled_like(x.constant(), like)) : *x.variable();
}

const Variable& variable_among(const Symbol& a, const Symbol& b) {
  return is_constant(a) ? *b.variable() : *a.variable();
}

/// A comparison by `of_numbers` for two constants, else by `of_tensors`.
template <class Numbers, class Tensors>
Mask compared(const Symbol& a, const Symbol& b, Numbers of_numbers, Tensors of_tensors) {
  if (is_constant(a) && is_constant(b)) return {{}, of_numbers(a.constant(), b.constant())};
  const Variable& like = variable_among(a, b);
  return {of_tensors(variable_of(a, like).tensor(), variable_of(b, like).tensor()), false};
}

template <class Number, class Function> Symbol applied(const Symbol& x, Number of_number, Function of_variable) {
  return is_constant(x) ? Symbol(of_number(x.constant())) : Symbol(of_variable(*x.variable()));
}

}  // namespace

Symbol operator+(const Symbol& a, const Symbol& b) {
  if (is_constant(a) && is_constant(b)) return a.constant() + b.constant();
  if (is_constant(b)) return add_scalar(*a.variable(), b.constant());
  if (is_constant(a)) return add_scalar(*b.variable(), a.constant());
  return add(*a.variable(), *b.variable());
}
Symbol operator-(const Symbol& a, const Symbol& b) {
  if (is_constant(a) && is_constant(b)) return a.constant() - b.constant();
  if (is_constant(b)) return sub_scalar(*a.variable(), b.constant());
  if (is_constant(a)) return rsub_scalar(*b.variable(), a.constant());
  return sub(*a.variable(), *b.variable());
}
Symbol operator*(const Symbol& a, const Symbol& b) {
  if (is_constant(a) && is_constant(b)) return a.constant() * b.constant();
  if (is_constant(b)) return mul_scalar(*a.variable(), b.constant());
  if (is_constant(a)) return mul_scalar(*b.variable(), a.constant());
  return mul(*a.variable(), *b.variable());
}
Symbol operator/(const Symbol& a, const Symbol& b) {
  if (is_constant(a) && is_constant(b)) return a.constant() / b.constant();
  if (is_constant(b)) return div_scalar(*a.variable(), b.constant());
  if (is_constant(a)) return rdiv_scalar(*b.variable(), a.constant());
  return div(*a.variable(), *b.variable());
}
Symbol operator-(const Symbol& x) {
  return applied(
      x, [](double v) { return -v; }, [](const Variable& v) { return neg(v); });
}

#define LOCKSTEP_COMPARED(symbol, name)                                         \
  Mask operator symbol(const Symbol& a, const Symbol& b) {                      \
    return compared(                                                            \
        a, b, [](double x, double y) { return x symbol y; },                    \
        [](const Tensor& x, const Tensor& y) { return lockstep::name(x, y); }); \
  }
LOCKSTEP_COMPARED(<, lt)
LOCKSTEP_COMPARED(<=, le)
LOCKSTEP_COMPARED(>, gt)
LOCKSTEP_COMPARED(>=, ge)
LOCKSTEP_COMPARED(==, eq)
#undef LOCKSTEP_COMPARED

Mask operator&(const Mask& a, const Mask& b) {
  if (!a.elements.defined()) return a.constant ? b : a;
  if (!b.elements.defined()) return b.constant ? a : b;
  return {logical_and(a.elements, b.elements), false};
}

Symbol select(const Mask& mask, const Symbol& a, const Symbol& b) {
  if (!mask.elements.defined()) return mask.constant ? a : b;
  const Variable& like = variable_among(a, b);
  return where(mask.elements, variable_of(a, like), variable_of(b, like));
}

Symbol cos(const Symbol& x) { return lockstep::cos(*x.variable()); }
Symbol erf(const Symbol& x) { return lockstep::erf(*x.variable()); }
Symbol floor_divide(const Symbol& a, const Symbol& b) { return lockstep::floor_divide(*a.variable(), *b.variable()); }
Symbol exp(const Symbol& x) { return lockstep::exp(*x.variable()); }
Symbol exp_normal(const Symbol& x) { return lockstep::exp(clamp(*x.variable(), -87, 87)); }
Symbol sigmoid(const Symbol& x) { return lockstep::sigmoid(*x.variable()); }
Symbol sin(const Symbol& x) { return lockstep::sin(*x.variable()); }
Symbol power(const Symbol& x, const Symbol& y) {
  return is_constant(y) ? pow_scalar(*x.variable(), y.constant()) : pow(variable_of(x, *y.variable()), *y.variable());
}
Symbol logarithm(const Symbol& x) { return log(*x.variable()); }
Symbol digamma(const Symbol& x) { return lockstep::digamma(*x.variable()); }
Symbol trigamma(const Symbol& x) { return lockstep::trigamma(*x.variable()); }
Symbol tetragamma(const Symbol&) {
  fail(
      "[backward] the derivative of 'trigamma' cannot be differentiated again (create_graph); compose this step from "
      "other operations");
}

}  // namespace symbolic

Variable pointwise_grad(PointwiseOp op, PointwisePart part, const PointwiseArgs& args, const Variable& grad,
                        const Variable& a, const Variable& b) {
  using symbolic::Symbol;
  const Wide wide(grad);
  const Symbol g = wide(grad), x = a.defined() ? Symbol(wide(a)) : Symbol(),
               y = b.defined() ? Symbol(wide(b)) : Symbol();
  const functor::Params<Symbol> params{args.p.real(), args.q.real()};
  const auto result = [&]() -> Symbol {
    switch (op) {
#define LOCKSTEP_UNARY(name, functor_, types) \
  case PointwiseOp::name:                     \
    return functor::functor_::grad(g, x, params);
#define LOCKSTEP_UNARY1(name, functor_, types, p, d) LOCKSTEP_UNARY(name, functor_, types)
#define LOCKSTEP_UNARY2(name, functor_, types, p, d, q, e) LOCKSTEP_UNARY(name, functor_, types)
#define LOCKSTEP_BINARY(name, functor_, types) \
  case PointwiseOp::name:                      \
    return part == PointwisePart::grad0 ? functor::functor_::grad0(g, x, y) : functor::functor_::grad1(g, x, y);
#include "tensor/pointwise.def"
      default:
        fail(str("[backward] operation ", int(op), " has no derivative; this is a bug in Lockstep, please report it"));
    }
  }();
  if (!result.variable()) return Variable(zeros_like(grad.tensor()));
  return wide.round(*result.variable());
}

}  // namespace lockstep
