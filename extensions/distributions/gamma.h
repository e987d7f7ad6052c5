#pragma once
// Distributions over positive numbers, and Beta. rsample() of Gamma and Beta has implicit gradients: derivatives of the
// sample at constant cumulative probability (Figurnov et al., 2018).
#include "extensions/distributions/distribution.h"

namespace lockstep::distributions {

/// Density proportional to x^(concentration - 1) e^(-rate x).
class Gamma : public Distribution {
 public:
  Gamma(const Parameter& concentration, const Parameter& rate);  ///< both > 0
  const char* name() const override { return "Gamma"; }
  Variable log_prob(const Variable& value) const override;
  Variable entropy() const override;
  Variable mean() const override { return concentration / rate; }
  Variable variance() const override { return concentration / square(rate); }
  Variable concentration, rate;

 private:
  Variable draw(const Shape& shape) const override;
  explicit Gamma(const std::vector<Variable>& p);
};

/// Waiting time until an event that occurs at rate `rate`: density rate e^(-rate x).
class Exponential : public Distribution {
 public:
  explicit Exponential(const Parameter& rate);  ///< rate > 0
  const char* name() const override { return "Exponential"; }
  Variable log_prob(const Variable& value) const override;
  Variable entropy() const override { return 1.0 - log(rate); }
  Variable mean() const override { return reciprocal(rate); }
  Variable variance() const override { return square(reciprocal(rate)); }
  Variable rate;

 private:
  Variable draw(const Shape& shape) const override;
  explicit Exponential(const std::vector<Variable>& p);
};

/// A number in (0, 1), distributed as a / (a + b) for gamma variates a and b with shapes concentration1 and
/// concentration0.
class Beta : public Distribution {
 public:
  Beta(const Parameter& concentration1, const Parameter& concentration0);  ///< both > 0
  const char* name() const override { return "Beta"; }
  Variable log_prob(const Variable& value) const override;
  Variable entropy() const override;
  Variable mean() const override { return concentration1 / (concentration1 + concentration0); }
  Variable variance() const override;
  Variable concentration1, concentration0;

 private:
  Variable draw(const Shape& shape) const override;
  explicit Beta(const std::vector<Variable>& p);
};

}  // namespace lockstep::distributions
