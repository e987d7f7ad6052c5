#pragma once
// Autocast: inside the scope, matrix products, convolutions and attention run in bf16 or f16; softmax, norms and losses
// run in f32; other operations run in the widest dtype of their operands. Outside a scope nothing is ever promoted. If
// input and weight of a norm both have 16 bits, neither is cast, so a model with 16-bit parameters needs no casts.
#include <array>
#include <initializer_list>
#include <optional>

#include "autograd/variable.h"

namespace lockstep {

/// An autocast scope of this thread. The innermost scope applies. Each weight is cast once per scope.
class Autocast {
 public:
  /// `enabled` = false turns autocast off inside an outer scope. Error unless dtype is bf16 or f16.
  explicit Autocast(DType dtype = bf16, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;

  static bool enabled();  ///< True inside an enabled scope.
  static DType dtype();   ///< Dtype of the innermost scope; bf16 without one.
  /// Casts x to the scope's dtype, for operations that run in 16 bits. Returns x itself outside a scope, and if x is
  /// f64, integer or a stored matrix (tensor/stored_matrix.h).
  static Variable low(const Variable& x);
  /// Casts a 16-bit x to f32, for operations that need f32. Returns x itself outside a scope, and if x is not 16-bit.
  static Variable high(const Variable& x);
  /// Returns the operands of a norm. If x and weight differ in dtype, 16-bit operands are cast to f32, as by high().
  static std::array<Variable, 3> of_norm(const Variable& x, const Variable& weight, const Variable& bias);
  /// True when operands of these dtypes are promoted to wider(a, b): inside a scope, when both are floating.
  static bool promotes(DType a, DType b) { return enabled() && is_floating(a) && is_floating(b); }
  /// The wider of two floating dtypes; f32 if one is f16 and the other bf16.
  static DType wider(DType a, DType b);
  /// The dtype to promote these operands to; empty outside a scope, when an operand is not floating, or when all
  /// operands have the same dtype.
  static std::optional<DType> common(std::initializer_list<const Variable*> operands);

 private:
  struct State;
  State* previous_;
};

/// For a function whose forward or backward consists of several operations. Converts 16-bit inputs to f32 at the
/// start and rounds the result once at the end, so that no value in between overflows, underflows or is rounded. Under
/// autocast the result stays f32.
class Wide {
 public:
  /// `x` decides the dtype of the result.
  explicit Wide(const Variable& x) : rounds_(is_short(x) && !Autocast::enabled()), dtype_(x.dtype()) {}
  Variable operator()(const Variable& x) const { return is_short(x) ? x.to(f32) : x; }  ///< x in f32 if it has 16 bits
  Variable round(const Variable& y) const { return rounds_ ? y.to(dtype_) : y; }  ///< y in the dtype of the result

 private:
  static bool is_short(const Variable& x) { return x.defined() && (x.dtype() == f16 || x.dtype() == bf16); }
  bool rounds_;
  DType dtype_;
};

}  // namespace lockstep
