#pragma once
// Distributions with a location and a scale, and Uniform.
#include "extensions/distributions/distribution.h"

namespace lockstep::distributions {

/// The normal distribution with mean loc and standard deviation scale.
class Normal : public Distribution {
 public:
  Normal(const Parameter& loc, const Parameter& scale);  ///< scale > 0
  const char* name() const override { return "Normal"; }
  Variable log_prob(const Variable& value) const override;
  Variable entropy() const override;
  Variable mean() const override { return loc; }
  Variable variance() const override { return square(scale); }
  Variable loc, scale;

 private:
  Variable draw(const Shape& shape) const override;
  friend class LogNormal;
  Variable draw_wide(const Shape& shape) const;  ///< a sample that is not rounded to 16 bits yet
  explicit Normal(const std::vector<Variable>& p);
};

/// e^x for a normal variate x.
class LogNormal : public Distribution {
 public:
  LogNormal(const Parameter& loc, const Parameter& scale);  ///< parameters of the normal distribution; scale > 0
  const char* name() const override { return "LogNormal"; }
  Variable log_prob(const Variable& value) const override;
  Variable entropy() const override { return add(base.entropy(), base.loc); }
  Variable mean() const override { return exp(base.loc + square(base.scale) * 0.5); }
  Variable variance() const override;
  Normal base;

 protected:
  Variable draw(const Shape& shape) const override;
};

/// Density e^(-|x - loc| / scale) / (2 scale).
class Laplace : public Distribution {
 public:
  Laplace(const Parameter& loc, const Parameter& scale);  ///< scale > 0
  const char* name() const override { return "Laplace"; }
  Variable log_prob(const Variable& value) const override;
  Variable entropy() const override { return log(scale * 2.0) + 1.0; }
  Variable mean() const override { return loc; }
  Variable variance() const override { return square(scale) * 2.0; }
  Variable loc, scale;

 private:
  Variable draw(const Shape& shape) const override;
  explicit Laplace(const std::vector<Variable>& p);
};

/// Uniform on [low, high).
class Uniform : public Distribution {
 public:
  Uniform(const Parameter& low, const Parameter& high);  ///< low < high
  const char* name() const override { return "Uniform"; }
  Variable log_prob(const Variable& value) const override;
  Variable entropy() const override { return log(high - low); }
  Variable mean() const override { return (low + high) * 0.5; }
  Variable variance() const override { return square(high - low) * (1. / 12); }
  Variable low, high;

 private:
  Variable draw(const Shape& shape) const override;
  explicit Uniform(const std::vector<Variable>& p);
};

/// Student's t with df degrees of freedom, shifted by loc and stretched by scale.
class StudentT : public Distribution {
 public:
  explicit StudentT(const Parameter& df, const Parameter& loc = 0.0, const Parameter& scale = 1.0);  ///< df, scale > 0
  const char* name() const override { return "StudentT"; }
  Variable log_prob(const Variable& value) const override;
  Variable entropy() const override;
  Variable mean() const override;      ///< NaN for df <= 1
  Variable variance() const override;  ///< NaN for df <= 1, infinite for df <= 2
  Variable df, loc, scale;

 private:
  Variable draw(const Shape& shape) const override;
  explicit StudentT(const std::vector<Variable>& p);
};

}  // namespace lockstep::distributions
