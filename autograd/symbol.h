#pragma once
// Symbols: variables and constants that a functor's derivative (tensor/functors.h) accepts in place of numbers. So each
// derivative is written only once: kernels call it with numbers, and the tape calls it with symbols, which it records.
#include <optional>

#include "autograd/variable.h"
#include "tensor/kernel_args.h"

namespace lockstep::symbolic {

/// Result of a comparison: a bool for each element, or a single bool for two constants.
struct Mask {
  Tensor elements;
  bool constant = false;
};

/// A variable, or a constant that broadcasts.
class Symbol {
 public:
  /// A constant.
  Symbol(double constant = 0) : constant_(constant) {}  // NOLINT: implicit on purpose
  /// A variable.
  Symbol(Variable variable) : variable_(std::move(variable)) {}          // NOLINT
  const std::optional<Variable>& variable() const { return variable_; }  ///< empty for a constant
  double constant() const { return constant_; }                          ///< meaningless for a variable

 private:
  std::optional<Variable> variable_;
  double constant_ = 0;
};

/// Sum. For all arithmetic operators: if all operands are constants, the result is a constant.
Symbol operator+(const Symbol& a, const Symbol& b);
Symbol operator-(const Symbol& a, const Symbol& b);  ///< difference
Symbol operator*(const Symbol& a, const Symbol& b);  ///< product
Symbol operator/(const Symbol& a, const Symbol& b);  ///< quotient
Symbol operator-(const Symbol& x);                   ///< negation

/// Comparison, elementwise.
Mask operator<(const Symbol& a, const Symbol& b);
Mask operator<=(const Symbol& a, const Symbol& b);                  ///< elementwise
Mask operator>(const Symbol& a, const Symbol& b);                   ///< elementwise
Mask operator>=(const Symbol& a, const Symbol& b);                  ///< elementwise
Mask operator==(const Symbol& a, const Symbol& b);                  ///< elementwise
Mask operator&(const Mask& a, const Mask& b);                       ///< true where both masks are
Symbol select(const Mask& mask, const Symbol& a, const Symbol& b);  ///< a where the mask holds, else b

/// Cosine. The arguments of this function and of those below must not be constants; only power() allows one.
Symbol cos(const Symbol& x);
Symbol erf(const Symbol& x);                            ///< error function
Symbol floor_divide(const Symbol& a, const Symbol& b);  ///< floor(a / b)
Symbol exp(const Symbol& x);                            ///< e^x
/// e^x with x clamped to [-87, 87]. For branches of select(): the derivative of a discarded branch is multiplied by a
/// gradient of 0, so it must stay finite, because 0 times infinity is NaN.
Symbol exp_normal(const Symbol& x);
Symbol sigmoid(const Symbol& x);                  ///< 1 / (1 + e^-x)
Symbol sin(const Symbol& x);                      ///< sine
Symbol power(const Symbol& x, const Symbol& y);   ///< x^y
Symbol logarithm(const Symbol& x);                ///< natural logarithm
Symbol digamma(const Symbol& x);                  ///< derivative of log gamma
Symbol trigamma(const Symbol& x);                 ///< second derivative of log gamma
[[noreturn]] Symbol tetragamma(const Symbol& x);  ///< throws an Error: no operation computes it

}  // namespace lockstep::symbolic

namespace lockstep {

/// `grad` times the derivative of a pointwise operation. Works on variables, so the result can be differentiated again;
/// the function of the same name for tensors computes the same.
Variable pointwise_grad(PointwiseOp op, PointwisePart part, const PointwiseArgs& args, const Variable& grad,
                        const Variable& a, const Variable& b);

}  // namespace lockstep
