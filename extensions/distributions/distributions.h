#pragma once
// All probability distributions. Names, parameters and formulas are as in torch.distributions; gradients flow to
// parameters that are Variables. rsample() of Gamma, Beta and Dirichlet has implicit gradients: derivatives of the
// sample at constant cumulative probability (Figurnov et al., 2018).
#include <cmath>

#include "extensions/distributions/distribution.h"

namespace lockstep::distributions {

// --- with a location and a scale, and Uniform ---

/// The normal distribution with mean loc and standard deviation scale.
struct Normal : Distribution {
  Normal(const Parameter& loc, const Parameter& scale);  ///< scale > 0
  Variable log_prob(const Variable& value) const override;
  Variable draw(const Shape& shape) const override;
  Variable entropy() const override;
  Variable mean() const override { return loc; }
  Variable variance() const override { return square(scale); }
  Variable draw_wide(const Shape& shape) const;  ///< draw() before rounding to 16 bits
  Variable loc, scale;
};

/// e^x for a normal variate x.
struct LogNormal : Distribution {
  LogNormal(const Parameter& loc, const Parameter& scale);  ///< parameters of the normal distribution; scale > 0
  Variable log_prob(const Variable& value) const override;
  Variable draw(const Shape& shape) const override;
  Variable entropy() const override { return add(base.entropy(), base.loc); }
  Variable mean() const override { return exp(base.loc + square(base.scale) * 0.5); }
  Variable variance() const override;
  Normal base;
};

/// Density e^(-|x - loc| / scale) / (2 scale).
struct Laplace : Distribution {
  Laplace(const Parameter& loc, const Parameter& scale);  ///< scale > 0
  Variable log_prob(const Variable& value) const override;
  Variable draw(const Shape& shape) const override;
  Variable entropy() const override { return log(scale * 2.0) + 1.0; }
  Variable mean() const override { return loc; }
  Variable variance() const override { return square(scale) * 2.0; }
  Variable loc, scale;
};

/// Uniform on [low, high).
struct Uniform : Distribution {
  Uniform(const Parameter& low, const Parameter& high);  ///< low < high
  Variable log_prob(const Variable& value) const override;
  Variable draw(const Shape& shape) const override;
  Variable entropy() const override { return log(high - low); }
  Variable mean() const override { return (low + high) * 0.5; }
  Variable variance() const override { return square(high - low) * (1. / 12); }
  Variable low, high;
};

/// Student's t with df degrees of freedom, shifted by loc and stretched by scale.
struct StudentT : Distribution {
  explicit StudentT(const Parameter& df, const Parameter& loc = 0.0, const Parameter& scale = 1.0);  ///< df, scale > 0
  Variable log_prob(const Variable& value) const override;
  Variable draw(const Shape& shape) const override;
  Variable entropy() const override;
  Variable mean() const override;      ///< NaN for df <= 1
  Variable variance() const override;  ///< NaN for df <= 1, infinite for df <= 2
  Variable df, loc, scale;
};

// --- over positive numbers, and Beta ---

/// Density proportional to x^(concentration - 1) e^(-rate x).
struct Gamma : Distribution {
  Gamma(const Parameter& concentration, const Parameter& rate);  ///< both > 0
  Variable log_prob(const Variable& value) const override;
  Variable draw(const Shape& shape) const override;
  Variable entropy() const override;
  Variable mean() const override { return concentration / rate; }
  Variable variance() const override { return concentration / square(rate); }
  Variable concentration, rate;
};

/// Waiting time until an event that occurs at rate `rate`: density rate e^(-rate x).
struct Exponential : Distribution {
  explicit Exponential(const Parameter& rate);  ///< rate > 0
  Variable log_prob(const Variable& value) const override;
  Variable draw(const Shape& shape) const override;
  Variable entropy() const override { return 1.0 - log(rate); }
  Variable mean() const override { return reciprocal(rate); }
  Variable variance() const override { return square(reciprocal(rate)); }
  Variable rate;
};

/// A number in (0, 1), distributed as a / (a + b) for gamma variates a and b with shapes concentration1 and
/// concentration0.
struct Beta : Distribution {
  Beta(const Parameter& concentration1, const Parameter& concentration0);  ///< both > 0
  Variable log_prob(const Variable& value) const override;
  Variable draw(const Shape& shape) const override;
  Variable entropy() const override;
  Variable mean() const override { return concentration1 / (concentration1 + concentration0); }
  Variable variance() const override;
  Variable concentration1, concentration0;
};

// --- over vectors: the last dim is the event ---

/// Vectors of positive numbers that sum to 1.
struct Dirichlet : Distribution {
  explicit Dirichlet(const Variable& concentration);  ///< (batch..., n), > 0
  Variable log_prob(const Variable& value) const override;
  Variable draw(const Shape& shape) const override;
  Variable entropy() const override;
  Variable mean() const override;
  Variable variance() const override;
  Variable concentration;
};

/// The normal distribution with mean loc (batch..., n) and covariance L L^T, where scale_tril L (batch..., n, n) is
/// lower triangular with a positive diagonal. Batch dims broadcast.
struct MultivariateNormal : Distribution {
  MultivariateNormal(const Variable& loc, const Variable& scale_tril);  ///< checks L on the CPU
  Variable log_prob(const Variable& value) const override;
  Variable draw(const Shape& shape) const override;
  Variable entropy() const override;
  Variable mean() const override { return loc; }
  Variable variance() const override;     ///< (batch..., n): the diagonal of the covariance
  Variable covariance() const;            ///< L L^T, (batch..., n, n)
  Variable half_log_determinant() const;  ///< sum of log diag(L): half the logarithm of the covariance's determinant
  Variable loc, scale_tril;
};

// --- over integers: without rsample() ---

/// 1 with probability probs, else 0. Samples have the dtype of probs.
struct Bernoulli : Distribution {
  explicit Bernoulli(const Parameter& probs);             ///< in [0, 1]
  static Bernoulli from_logits(const Parameter& logits);  ///< probs = sigmoid(logits)
  bool has_rsample() const override { return false; }
  Variable log_prob(const Variable& value) const override;  ///< value in [0, 1]
  Variable draw(const Shape& shape) const override;
  Variable entropy() const override;
  Variable mean() const override { return probs; }
  Variable variance() const override { return probs * (1.0 - probs); }
  Variable probs, logits;  ///< both of shape (batch...)
  Variable wide_probs;     ///< probs before rounding to 16 bits

 private:
  Bernoulli() : Distribution("Bernoulli") {}
};

/// Class k with probability proportional to probs[..., k], of shape (batch..., classes). Samples: i64, (batch...).
struct Categorical : Distribution {
  explicit Categorical(const Variable& probs);             ///< >= 0 and not all 0; normalised to sum 1
  static Categorical from_logits(const Variable& logits);  ///< unnormalised log-probabilities; any numbers
  bool has_rsample() const override { return false; }
  Variable log_prob(const Variable& value) const override;  ///< value: class indices, of any dtype
  Variable draw(const Shape& shape) const override;
  Variable entropy() const override;
  Variable mean() const override { return nothing(); }      ///< NaN: class indices have no mean
  Variable variance() const override { return nothing(); }  ///< NaN
  Variable probs, logits;                                   ///< normalised probabilities and their logarithms
  Variable wide_probs, wide_logits;                         ///< probs and logits before rounding to 16 bits

 private:
  Categorical(const Variable& p, const Variable& l, DType dtype);
  Variable nothing() const { return full(batch_shape(), NAN, options_of(probs)); }
};

/// The number of events in a unit of time, if they occur at rate `rate` on average. Samples have the dtype of rate.
struct Poisson : Distribution {
  explicit Poisson(const Parameter& rate);  ///< >= 0
  bool has_rsample() const override { return false; }
  Variable log_prob(const Variable& value) const override;
  Variable draw(const Shape& shape) const override;
  Variable mean() const override { return rate; }
  Variable variance() const override { return rate; }
  Variable rate;  ///< mean number of events
};

/// E_p[log p - log q], by formula. Supported: two distributions of one class (except StudentT), Exponential and Gamma
/// in both orders, Uniform or Laplace against Normal. Error for other pairs: estimate these from samples.
Variable kl_divergence(const Distribution& p, const Distribution& q);

}  // namespace lockstep::distributions
