#pragma once
// Distributions over integers. They have no rsample().
#include <cmath>

#include "extensions/distributions/distribution.h"

namespace lockstep::distributions {

/// 1 with probability probs, else 0. Samples have the dtype of probs.
class Bernoulli : public Distribution {
 public:
  explicit Bernoulli(const Parameter& probs);             ///< in [0, 1]
  static Bernoulli from_logits(const Parameter& logits);  ///< probs = sigmoid(logits)
  const char* name() const override { return "Bernoulli"; }
  bool has_rsample() const override { return false; }
  Variable log_prob(const Variable& value) const override;  ///< value in [0, 1]
  Variable entropy() const override;
  Variable mean() const override { return probs; }
  Variable variance() const override { return probs * (1.0 - probs); }
  Variable probs, logits;  ///< both of shape (batch...)

 private:
  Variable draw(const Shape& shape) const override;
  Bernoulli(const Variable& p, const Variable& l)
      : Distribution(p.shape(), {}), probs(p), logits(l), wide_probs_(wide(p)) {}
  Variable wide_probs_;  ///< probs before rounding to 16 bits
};

/// Class k with probability proportional to probs[..., k], of shape (batch..., classes). Samples: i64, (batch...).
class Categorical : public Distribution {
 public:
  explicit Categorical(const Variable& probs);             ///< >= 0 and not all 0; normalised to sum 1
  static Categorical from_logits(const Variable& logits);  ///< unnormalised log-probabilities; any numbers
  const char* name() const override { return "Categorical"; }
  bool has_rsample() const override { return false; }
  Variable log_prob(const Variable& value) const override;  ///< value: class indices, of any dtype
  Variable entropy() const override;
  Variable mean() const override { return nothing(); }      ///< NaN: class indices have no mean
  Variable variance() const override { return nothing(); }  ///< NaN
  Variable probs, logits;                                   ///< normalised probabilities and their logarithms
  Variable wide_probs, wide_logits;                         ///< probs and logits before rounding to 16 bits

 private:
  Variable draw(const Shape& shape) const override;
  Categorical(const Variable& p, DType dtype);
  Categorical(const Variable& p, const Variable& l, DType dtype);
  Variable nothing() const { return full(batch_shape(), NAN, options_of(probs)); }
};

/// The number of events in a unit of time, if they occur at rate `rate` on average. Samples have the dtype of rate.
class Poisson : public Distribution {
 public:
  explicit Poisson(const Parameter& rate);  ///< >= 0
  const char* name() const override { return "Poisson"; }
  bool has_rsample() const override { return false; }
  Variable log_prob(const Variable& value) const override;
  Variable mean() const override { return rate; }
  Variable variance() const override { return rate; }
  Variable rate;  ///< mean number of events

 private:
  Variable draw(const Shape& shape) const override;
  explicit Poisson(const std::vector<Variable>& p);
};

}  // namespace lockstep::distributions
