#pragma once
// Distributions of vectors: the event is the last dim.
#include "distributions/distribution.h"

namespace lockstep::distributions {

/// Vectors of numbers above 0 that sum to 1. rsample() has implicit gradients (gamma.h).
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

/// Of covariance L L^T. loc (batch..., n), scale_tril L (batch..., n, n), lower with a diagonal above 0; leading dims
/// broadcast.
class MultivariateNormal : public Distribution {
 public:
  MultivariateNormal(const Variable& loc, const Variable& scale_tril);
  const char* name() const override { return "MultivariateNormal"; }
  Variable log_prob(const Variable& value) const override;
  Variable entropy() const override;
  Variable mean() const override { return loc; }
  Variable variance() const override;  ///< (batch..., n): the diagonal of the covariance
  Variable covariance() const;         ///< (batch..., n, n)
  Variable half_log_determinant() const;
  Variable loc, scale_tril;

 protected:
  Variable draw(const Shape& shape) const override;
};

}  // namespace lockstep::distributions
