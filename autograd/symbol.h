#pragma once
// What a functor's derivative (tensor/functors.h) is computed with when it is to be differentiated again: variables and
// constants in the place of numbers. So each derivative is written once, for kernels and for the tape.
#include <optional>

#include "autograd/variable.h"
#include "tensor/kernel_args.h"

namespace lockstep::symbolic {

/// A comparison: of each element, or of two constants.
struct Mask {
  Tensor elements;
  bool constant = false;
};

class Symbol {
 public:
  Symbol(double constant = 0) : constant_(constant) {}           // NOLINT: implicit on purpose
  Symbol(Variable variable) : variable_(std::move(variable)) {}  // NOLINT
  const std::optional<Variable>& variable() const { return variable_; }
  double constant() const { return constant_; }

 private:
  std::optional<Variable> variable_;
  double constant_ = 0;
};

Symbol operator+(const Symbol& a, const Symbol& b);
Symbol operator-(const Symbol& a, const Symbol& b);
Symbol operator*(const Symbol& a, const Symbol& b);
Symbol operator/(const Symbol& a, const Symbol& b);
Symbol operator-(const Symbol& x);

Mask operator<(const Symbol& a, const Symbol& b);
Mask operator<=(const Symbol& a, const Symbol& b);
Mask operator>(const Symbol& a, const Symbol& b);
Mask operator>=(const Symbol& a, const Symbol& b);
Mask operator==(const Symbol& a, const Symbol& b);
Mask operator&(const Mask& a, const Mask& b);
Symbol select(const Mask& mask, const Symbol& a, const Symbol& b);

Symbol cos(const Symbol& x);
Symbol erf(const Symbol& x);
Symbol floor_divide(const Symbol& a, const Symbol& b);
Symbol exp(const Symbol& x);
/// exp of x clipped to where it is a normal number: what is chosen away beyond must not be infinite (0 times it is
/// NaN).
Symbol exp_normal(const Symbol& x);
Symbol sigmoid(const Symbol& x);
Symbol sin(const Symbol& x);
Symbol power(const Symbol& x, const Symbol& y);
Symbol logarithm(const Symbol& x);
Symbol digamma(const Symbol& x);
Symbol trigamma(const Symbol& x);
[[noreturn]] Symbol tetragamma(const Symbol& x);  ///< an Error: no operation computes it

}  // namespace lockstep::symbolic

namespace lockstep {

/// The derivative of a pointwise operation times `grad`, on the tape; as the function of tensors of that name.
Variable pointwise_grad(PointwiseOp op, PointwisePart part, const PointwiseArgs& args, const Variable& grad,
                        const Variable& a, const Variable& b);

}  // namespace lockstep
