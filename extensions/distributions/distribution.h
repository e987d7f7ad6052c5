#pragma once
// The interface of all distributions, and their parameters.
#include <initializer_list>
#include <vector>

#include "autograd/ops.h"

namespace lockstep::distributions {

/// A parameter: a variable, a tensor or a number. A number takes the other parameters' dtype (f32 if all are numbers).
struct Parameter {
  /// A variable: gradients flow to it.
  Parameter(const Variable& x) : value(x) {}  // NOLINT: implicit on purpose
  /// A constant tensor.
  Parameter(const Tensor& x) : value(x) {}  // NOLINT
  /// A number.
  Parameter(double x) : number(x) {}  // NOLINT

  Variable value;     ///< undefined for a number
  double number = 0;  ///< the number, if `value` is undefined
};

/// Base class. Parameters are checked by the constructor and values by log_prob(), on the CPU only: on a device the
/// check would have to wait for the kernels. All functions mean the same as in torch.distributions.
class Distribution {
 public:
  virtual ~Distribution() = default;
  const char* name() const { return name_; }           ///< class name, for error messages
  const Shape& batch_shape() const { return batch_; }  ///< broadcast shape of the parameters
  const Shape& event_shape() const { return event_; }  ///< shape of one value: () unless stated otherwise

  /// Samples of shape (shape..., batch..., event...) without gradients, drawn from this thread's generator.
  Tensor sample(const Shape& shape = {}) const;
  /// Samples as differentiable functions of the parameters (reparametrised). Error if has_rsample() is false.
  Variable rsample(const Shape& shape = {}) const;
  virtual bool has_rsample() const { return true; }  ///< true if rsample() exists
  /// Draws samples; `shape` is the whole shape of the result.
  virtual Variable draw(const Shape& shape) const = 0;

  /// Logarithm of the density or probability, of shape (..., batch...). value broadcasts against (batch..., event...).
  virtual Variable log_prob(const Variable& value) const = 0;
  /// Entropy in nats. Error for distributions without a formula (Poisson).
  virtual Variable entropy() const;
  virtual Variable mean() const = 0;                    ///< expected value
  virtual Variable variance() const = 0;                ///< variance of each element
  Variable stddev() const { return sqrt(variance()); }  ///< square root of the variance

 protected:
  explicit Distribution(const char* name, const Shape& batch = {}, const Shape& event = {})
      : name_(name), batch_(batch), event_(event) {}
  /// An argument of a constructor, the member that receives it, and what must hold for all elements.
  struct Given {
    const Parameter& argument;
    Variable& member;
    const char* condition = nullptr;  ///< the text for Errors
    Tensor (*good)(const Tensor& x) = nullptr;
  };
  /// Sets the members, broadcast to one shape, which becomes the batch shape; then checks the conditions.
  void take(std::initializer_list<Given> parameters);
  /// Converts a value to the dtype of `like`. Error if its shape does not fit the event and batch shapes, or if good()
  /// is false for an element. The Error names the allowed values, `support`.
  Variable checked(const Variable& value, const Variable& like, const char* support,
                   const std::function<Tensor(const Tensor&)>& good) const;

  const char* name_;
  Shape batch_, event_;
};

// --- helpers of the distributions ---

/// Converts parameters to variables of one floating dtype, device and shape. Error if dtypes or devices differ.
std::vector<Variable> broadcast(const char* name, const std::vector<Parameter>& parameters);
Tensor above(const Tensor& x, double low);     ///< x > low
Tensor positive(const Tensor& x);              ///< x > 0
Tensor not_negative(const Tensor& x);          ///< x >= 0
Tensor in_unit(const Tensor& x);               ///< 0 <= x <= 1
Tensor is_finite(const Tensor& x);             ///< true unless NaN
TensorOptions options_of(const Variable& x);   ///< dtype and device of x
Shape joined(Shape front, const Shape& back);  ///< the sizes of both
/// Converts 16-bit floats to f32: samples, and sums over classes, are computed in f32 or f64 and rounded once.
Variable wide(const Variable& x);
/// x log y, and 0 where x is 0, also for y <= 0.
Variable x_log_y(const Variable& x, const Variable& y);
/// Logarithms of samples of Gamma(shape, rate 1), in f64, differentiable with respect to `shape`.
Variable log_gamma_variates(const Variable& shape);

}  // namespace lockstep::distributions
