// Derivatives of the pointwise operations. All rows of pointwise.def share two closures, one for unary and one for
// binary operations. The closures save only what the functor's derivative reads (tensor/functors.h), and let the kernel
// overwrite the incoming gradient when nobody else holds it.
#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/recorded.h"
#include "autograd/unary_grad.h"
#include "tensor/functors.h"

namespace lockstep {
namespace {

using functor::Reads;

struct Unary {
  const char* name;
  PointwiseOp op;
  Reads reads;
  PointwiseArgs args = {};
};

UnaryGrad derivative(const Unary& info, Saved kept) {
  return {info.name, info.op, info.args, std::move(kept), info.reads};
}

Variable unary(const Unary& info, const Variable& x, Tensor out) {
  if (!needs_grad({&x})) return out;
  Saved kept;
  if (info.reads == Reads::input) kept = x;
  if (info.reads == Reads::output) kept = out;
  return record(info.name, {&x}, std::move(out), derivative(info, std::move(kept)));
}

void check_not_complex(const char* name, const Variable& x) {
  LOCKSTEP_CHECK(!is_complex(x.dtype()), "[", name, "] expected a real variable, got ", x.dtype(),
                 "; use the out-of-place operation");
}

/// The copy of x that the derivative of an in-place operation will read; taken before the operation.
Saved before_write(const Unary& info, const Variable& x) {
  check_not_complex(info.name, x);
  check_in_place(info.name, x);
  return info.reads == Reads::input && needs_grad({&x}) ? Saved(x.tensor().clone()) : Saved();
}

Variable& after_write(const Unary& info, Variable& x, Saved kept) {
  if (!needs_grad({&x})) return x;
  if (info.reads == Reads::output) kept = x;
  rebase(x, record(info.name, {&x}, x.tensor(), derivative(info, std::move(kept))));
  return x;
}

struct Binary {
  const char* name;
  PointwiseOp op;
  int reads0, reads1;  // bits of the operands that each derivative reads
};

struct BinaryGrad {
  Binary info;
  Saved a, b;

  /// Returns the gradient of a or b (see `part`). Overwrites the incoming gradient if no other handle to it exists.
  template <class Back> auto part(Back& back, PointwisePart part, int reads) const {
    const typename Back::Value& grad = back.grad();
    const bool first = part == PointwisePart::grad0;
    if (info.op == PointwiseOp::mul && is_free(grad))
      return mul_over(grad, first ? back.input(1, b) : back.input(0, a));
    if (reads != functor::nothing) return pointwise_grad(info.op, part, {}, grad, back.input(0, a), back.input(1, b));
    return first || info.op != PointwiseOp::sub ? grad : neg_over(grad);
  }

  void operator()(Backward& back) {
    if (!back.needs(0) || !back.needs(1) || info.reads0 == functor::nothing || info.reads1 == functor::nothing)
      return by_parts(back);
    PointwiseGrads grads = pointwise_grads(info.op, back.grad(), back.input(0, a), back.input(1, b));
    back.give(1, std::move(grads.b));
    back.give(0, std::move(grads.a));
  }
  void operator()(RecordedBackward& back) { by_parts(back); }

  template <class Back> void by_parts(Back& back) const {
    if (back.needs(1)) {
      const auto held = back.needs(0) ? back.grad() : typename Back::Value();  // a second handle prevents overwriting
      back.give(1, part(back, PointwisePart::grad1, info.reads1));
    }
    if (back.needs(0)) back.give(0, part(back, PointwisePart::grad0, info.reads0));
  }
};

/// Flags (reads_a, reads_b) of the operands that backward reads, for the gradients of those operands that require one.
int reads_of(const Binary& info, const Variable& a, const Variable& b) {
  return (a.requires_grad() ? info.reads0 : 0) | (b.requires_grad() ? info.reads1 : 0);
}

Variable binary(const Binary& info, const Variable& a, const Variable& b, Tensor out) {
  if (!needs_grad({&a, &b})) return out;
  const int reads = reads_of(info, a, b);
  return record(
      info.name, {&a, &b}, std::move(out),
      BinaryGrad{info, reads & functor::reads_a ? Saved(a) : Saved(), reads & functor::reads_b ? Saved(b) : Saved()});
}

BinaryGrad before_write(const Binary& info, const Variable& a, const Variable& b) {
  check_not_complex(info.name, a);
  check_in_place(info.name, a);
  BinaryGrad grad{info, {}, {}};
  if (!needs_grad({&a, &b})) return grad;
  const int reads = reads_of(info, a, b);
  const bool aliased = a.tensor().storage() == b.tensor().storage();
  if (reads & functor::reads_a) grad.a = a.tensor().clone();
  if (reads & functor::reads_b) grad.b = aliased ? b.tensor().clone() : b.tensor();
  return grad;
}

Variable& after_write(Variable& a, const Variable& b, BinaryGrad grad) {
  if (!needs_grad({&a, &b})) return a;
  const char* name = grad.info.name;
  rebase(a, record(name, {&a, &b}, a.tensor(), std::move(grad)));
  return a;
}

/// True for operations that run in f32 under autocast: in 16 bits they would overflow, or lose digits by cancellation.
constexpr bool is_sensitive(PointwiseOp op) {
  switch (op) {
    case PointwiseOp::exp:
    case PointwiseOp::expm1:
    case PointwiseOp::log:
    case PointwiseOp::log2:
    case PointwiseOp::log1p:
    case PointwiseOp::rsqrt:
    case PointwiseOp::reciprocal:
    case PointwiseOp::pow:
    case PointwiseOp::pow_scalar:
    case PointwiseOp::softplus:
    case PointwiseOp::log_sigmoid: return true;
    default: return false;
  }
}

bool wants_f32(PointwiseOp op, const Variable& x) {
  return is_sensitive(op) && Autocast::enabled() && (x.dtype() == f16 || x.dtype() == bf16);
}

bool wants_promotion(PointwiseOp op, const Variable& a, const Variable& b) {
  return (a.dtype() != b.dtype() && Autocast::promotes(a.dtype(), b.dtype())) || wants_f32(op, a);
}

DType promoted(PointwiseOp op, const Variable& a, const Variable& b) {
  const DType dtype = Autocast::wider(a.dtype(), b.dtype());
  return is_sensitive(op) ? Autocast::wider(dtype, f32) : dtype;
}

}  // namespace

#define LOCKSTEP_INFO(name, functor_, ...)                              \
  Unary {                                                               \
#name, PointwiseOp::name, functor::functor_::reads, { __VA_ARGS__ } \
  }
#define LOCKSTEP_INFO_(name, functor_, ...)                                 \
  Unary {                                                                   \
#name "_", PointwiseOp::name, functor::functor_::reads, { __VA_ARGS__ } \
  }

#define LOCKSTEP_UNARY(name, functor_, types)                                        \
  Variable name(const Variable& x) {                                                 \
    if (is_complex(x.dtype())) return complex_unary(#name, PointwiseOp::name, 0, x); \
    if (wants_f32(PointwiseOp::name, x)) return name(x.to(f32));                     \
    return unary(LOCKSTEP_INFO(name, functor_), x, name(x.tensor()));                \
  }                                                                                  \
  Variable& name##_(Variable& x) {                                                   \
    Saved kept = before_write(LOCKSTEP_INFO_(name, functor_), x);                    \
    name##_(x.tensor());                                                             \
    return after_write(LOCKSTEP_INFO_(name, functor_), x, std::move(kept));          \
  }

#define LOCKSTEP_UNARY1(name, functor_, types, p, p_default)                         \
  Variable name(const Variable& x, Scalar p) {                                       \
    if (is_complex(x.dtype())) return complex_unary(#name, PointwiseOp::name, p, x); \
    if (wants_f32(PointwiseOp::name, x)) return name(x.to(f32), p);                  \
    return unary(LOCKSTEP_INFO(name, functor_, p), x, name(x.tensor(), p));          \
  }                                                                                  \
  Variable& name##_(Variable& x, Scalar p) {                                         \
    Saved kept = before_write(LOCKSTEP_INFO_(name, functor_, p), x);                 \
    name##_(x.tensor(), p);                                                          \
    return after_write(LOCKSTEP_INFO_(name, functor_, p), x, std::move(kept));       \
  }

#define LOCKSTEP_UNARY2(name, functor_, types, p, p_default, q, q_default)        \
  Variable name(const Variable& x, Scalar p, Scalar q) {                          \
    if (wants_f32(PointwiseOp::name, x)) return name(x.to(f32), p, q);            \
    return unary(LOCKSTEP_INFO(name, functor_, p, q), x, name(x.tensor(), p, q)); \
  }                                                                               \
  Variable& name##_(Variable& x, Scalar p, Scalar q) {                            \
    Saved kept = before_write(LOCKSTEP_INFO_(name, functor_, p, q), x);           \
    name##_(x.tensor(), p, q);                                                    \
    return after_write(LOCKSTEP_INFO_(name, functor_, p, q), x, std::move(kept)); \
  }

#define LOCKSTEP_BINARY(name, functor_, types)                                                                       \
  Variable name(const Variable& a, const Variable& b) {                                                              \
    if (is_complex(a.dtype()) || is_complex(b.dtype())) [[unlikely]]                                                 \
      return complex_binary(#name, PointwiseOp::name, a, b);                                                         \
    if (wants_promotion(PointwiseOp::name, a, b)) [[unlikely]] {                                                     \
      const DType dtype = promoted(PointwiseOp::name, a, b);                                                         \
      return name(a.to(dtype), b.to(dtype));                                                                         \
    }                                                                                                                \
    const Binary info{#name, PointwiseOp::name, functor::functor_::reads_grad0, functor::functor_::reads_grad1};     \
    return binary(info, a, b, name(a.tensor(), b.tensor()));                                                         \
  }                                                                                                                  \
  Variable& name##_(Variable& a, const Variable& b) {                                                                \
    if (a.dtype() != b.dtype() && Autocast::promotes(a.dtype(), b.dtype())) return name##_(a, b.to(a.dtype()));      \
    const Binary info{#name "_", PointwiseOp::name, functor::functor_::reads_grad0, functor::functor_::reads_grad1}; \
    BinaryGrad grad = before_write(info, a, b);                                                                      \
    name##_(a.tensor(), b.tensor());                                                                                 \
    return after_write(a, b, std::move(grad));                                                                       \
  }

#define LOCKSTEP_COMPARE(name, functor_)                                                              \
  Tensor name(const Variable& a, const Variable& b) {                                                 \
    const auto dtype = Autocast::common({&a, &b});                                                    \
    return dtype ? name(a.tensor().to(*dtype), b.tensor().to(*dtype)) : name(a.tensor(), b.tensor()); \
  }

#include "tensor/pointwise.def"
#undef LOCKSTEP_INFO
#undef LOCKSTEP_INFO_

Variable where(const Tensor& condition, const Variable& a, const Variable& b) {
  if (const auto dtype = Autocast::common({&a, &b})) return where(condition, a.to(*dtype), b.to(*dtype));
  return on_tape("where", {&a, &b}, where(condition, a.tensor(), b.tensor()),
                 [condition = Saved(condition)](auto& back) {
                   const Tensor& chosen = condition.get("where");
                   const Value<decltype(back)> zero = zeros({}, {back.grad().dtype(), back.grad().device()});
                   if (back.needs(0)) back.give(0, where(chosen, back.grad(), zero));
                   if (back.needs(1)) back.give(1, where(chosen, zero, back.grad()));
                 });
}

Variable addcmul(const Variable& a, const Variable& b, const Variable& c, Scalar value) {
  if (const auto dtype = Autocast::common({&a, &b, &c}))
    return addcmul(a.to(*dtype), b.to(*dtype), c.to(*dtype), value);
  Tensor out = addcmul(a.tensor(), b.tensor(), c.tensor(), value);
  if (!needs_grad({&a, &b, &c})) return out;
  const Saved kept_b = c.requires_grad() ? Saved(b) : Saved(), kept_c = b.requires_grad() ? Saved(c) : Saved();
  return record("addcmul", {&a, &b, &c}, std::move(out), [b = kept_b, c = kept_c, value](auto& back) {
    if (back.needs(0)) back.give(0, back.grad());
    if (!back.needs(1) && !back.needs(2)) return;
    const auto scaled = mul_scalar(back.grad(), value);
    if (back.needs(1)) back.give(1, mul(scaled, back.input(2, c)));
    if (back.needs(2)) back.give(2, mul(scaled, back.input(1, b)));
  });
}

Variable lerp(const Variable& a, const Variable& b, double weight) {
  if (const auto dtype = Autocast::common({&a, &b})) return lerp(a.to(*dtype), b.to(*dtype), weight);
  return on_tape("lerp", {&a, &b}, lerp(a.tensor(), b.tensor(), weight), [weight](auto& back) {
    if (back.needs(0)) back.give(0, mul_scalar(back.grad(), 1 - weight));
    if (back.needs(1)) back.give(1, mul_scalar(back.grad(), weight));
  });
}

}  // namespace lockstep
