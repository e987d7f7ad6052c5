#pragma once
// Autocast: inside the scope, matrix products, convolutions and attention run in bf16 or f16, and softmax, norms and
// losses in f32; the other operations promote to the wider operand. Outside it nothing is ever promoted.
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

 private:
  struct State;
  State* previous_;
};

}  // namespace lockstep
