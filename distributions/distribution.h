#pragma once
// What all distributions can do, and their parameters.
#include <initializer_list>
#include <optional>
#include <vector>

#include "autograd/ops.h"

namespace lockstep::distributions {

/// A parameter: a variable, a tensor, or a number, which takes the dtype of the others (f32 when all are numbers).
class Parameter {
 public:
  Parameter(const Variable& value) : value_(value) {}  // NOLINT: implicit on purpose
  Parameter(const Tensor& value) : value_(value) {}    // NOLINT
  Parameter(double number) : number_(number) {}        // NOLINT
  const Variable& value() const { return value_; }
  double number() const { return number_; }

 private:
  Variable value_;
  double number_ = 0;
};

/// Parameters are checked when a distribution is made, and values when their log_prob() is asked (where they lie on the
/// CPU: elsewhere nobody waits). Shapes: batch_shape() is that of the parameters, broadcast; event_shape() that of one
/// value: () unless said otherwise.
class Distribution {
 public:
  virtual ~Distribution() = default;
  virtual const char* name() const = 0;
  const Shape& batch_shape() const { return batch_; }
  const Shape& event_shape() const { return event_; }

  /// Values of shape (shape..., batch..., event...), without gradients, from the generator of this thread.
  Tensor sample(const Shape& shape = {}) const;
  /// The same as functions of the parameters, for gradients towards them. Error where has_rsample() is false.
  Variable rsample(const Shape& shape = {}) const;
  virtual bool has_rsample() const { return true; }

  /// Logarithm of the density, or of the probability; value broadcasts against (batch..., event...). (..., batch...)
  virtual Variable log_prob(const Variable& value) const = 0;
  /// In nats; Error where there is no formula (Poisson).
  virtual Variable entropy() const;
  virtual Variable mean() const = 0;
  virtual Variable variance() const = 0;
  Variable stddev() const { return sqrt(variance()); }

 protected:
  Distribution(const Shape& batch, const Shape& event) : batch_(batch), event_(event) {}
  /// Values of this whole shape.
  virtual Variable draw(const Shape& shape) const = 0;
  /// The value in `like`'s dtype. Error when its shape does not broadcast to the event, or when it is not `good`.
  Variable checked(const Variable& value, const Variable& like, const char* support,
                   const std::function<Tensor(const Tensor&)>& good) const;

 private:
  Shape batch_, event_;
};

// --- for the distributions ---

/// All of one floating dtype, device and shape: (batch..., and `event` dims that are each's own).
std::vector<Variable> broadcast(const char* name, std::initializer_list<Parameter> parameters);
/// Error naming the first value where good is false.
void check_parameter(const char* name, const char* expected, const Variable& values, const Tensor& good);
Tensor above(const Tensor& x, double low);     ///< x > low
Tensor at_least(const Tensor& x, double low);  ///< x >= low
Tensor is_finite(const Tensor& x);
TensorOptions options_of(const Variable& x);
/// 16-bit floats as f32: draws, and sums over classes, are computed in f32 at least and rounded once.
Variable wide(const Variable& x);
/// x log y, and 0 where x is 0, whatever y is.
Variable x_log_y(const Variable& x, const Variable& y);
/// Logarithms of gamma variates of rate 1, f64, as functions of their shape.
Variable log_gamma_variates(const Variable& shape);

}  // namespace lockstep::distributions
