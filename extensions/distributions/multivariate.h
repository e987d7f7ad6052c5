#pragma once
// Distributions over vectors: the last dim is the event.
#include "extensions/distributions/distribution.h"

namespace lockstep::distributions {

/// Vectors of positive numbers that sum to 1. rsample() has implicit gradients (gamma.h).
class Dirichlet : public Distribution {
 public:
  explicit Dirichlet(const Variable& concentration);  ///< (batch..., n), > 0
  const char* name() const override { return "Dirichlet"; }
  Variable log_prob(const Variable& value) const override;
  Variable entropy() const override;
  Variable mean() const override;
  Variable variance() const override;
  Variable concentration;

 protected:
  Variable draw(const Shape& shape) const override;
};

/// The normal distribution with mean loc (batch..., n) and covariance L L^T, where scale_tril L (batch..., n, n) is
/// lower triangular with a positive diagonal. Batch dims broadcast.
class MultivariateNormal : public Distribution {
 public:
  MultivariateNormal(const Variable& loc, const Variable& scale_tril);  ///< checks L on the CPU
  const char* name() const override { return "MultivariateNormal"; }
  Variable log_prob(const Variable& value) const override;
  Variable entropy() const override;
  Variable mean() const override { return loc; }
  Variable variance() const override;     ///< (batch..., n): the diagonal of the covariance
  Variable covariance() const;            ///< L L^T, (batch..., n, n)
  Variable half_log_determinant() const;  ///< sum of log diag(L): half the logarithm of the covariance's determinant
  Variable loc, scale_tril;

 protected:
  Variable draw(const Shape& shape) const override;
};

}  // namespace lockstep::distributions
