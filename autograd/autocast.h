#pragma once
// Autocast: inside the scope, matrix products, convolutions and attention run in bf16 or f16, and softmax, norms and
// losses in f32; the other operations promote to the wider operand. Outside it nothing is ever promoted.
#include <initializer_list>
#include <optional>

#include "autograd/variable.h"

namespace lockstep {

/// autocast(bf16) scope of this thread; nested scopes: the inner one counts. Weights are cast once a scope.
class Autocast {
 public:
  explicit Autocast(DType dtype = bf16, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;

  static bool enabled();
  static DType dtype();
  /// What an operation of each kind should read: itself when not inside a scope or not a 32-bit/16-bit float.
  static Variable low(const Variable& x);
  static Variable high(const Variable& x);
  /// Whether operands of these dtypes are brought to wider(a, b) here: inside a scope, and both floating.
  static bool promotes(DType a, DType b) { return enabled() && is_floating(a) && is_floating(b); }
  /// The wider of two floating dtypes; f32 for f16 with bf16.
  static DType wider(DType a, DType b);
  /// The dtype to bring the operands of one operation to: inside a scope, when they are floating and of several dtypes.
  static std::optional<DType> common(std::initializer_list<const Variable*> operands);

 private:
  struct State;
  State* previous_;
};

/// For what is composed of several operations, or has a derivative that is: of 16-bit floats it computes in f32 and
/// rounds its result once, so that no number in between is too large, too small or rounded. Under autocast the result
/// stays f32.
class Wide {
 public:
  explicit Wide(const Variable& x) : rounds_(is_short(x) && !Autocast::enabled()), dtype_(x.dtype()) {}
  Variable operator()(const Variable& x) const { return is_short(x) ? x.to(f32) : x; }
  Variable round(const Variable& y) const { return rounds_ ? y.to(dtype_) : y; }

 private:
  static bool is_short(const Variable& x) { return x.defined() && (x.dtype() == f16 || x.dtype() == bf16); }
  bool rounds_;
  DType dtype_;
};

}  // namespace lockstep
