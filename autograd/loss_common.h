#pragma once
// Checks and reductions that losses share.
#include "autograd/autocast.h"
#include "autograd/ops.h"

namespace lockstep {

/// Error unless x and target are floating and have one shape and one dtype. Under Autocast dtypes may differ.
inline void check_one_shape(const char* op, const Variable& x, const Variable& target) {
  LOCKSTEP_CHECK(x.shape() == target.shape(), "[", op, "] expected x and target of one shape, got ", x.shape(), " and ",
                 target.shape(), "; reshape one of them");
  LOCKSTEP_CHECK(is_floating(x.dtype()) && is_floating(target.dtype()), "[", op,
                 "] expected floating x and target, got ", x.dtype(), " and ", target.dtype(), "; use .to(f32)");
  LOCKSTEP_CHECK(x.dtype() == target.dtype() || Autocast::enabled(), "[", op,
                 "] expected x and target of one dtype, got ", x.dtype(), " and ", target.dtype(),
                 "; convert with .to(dtype)");
}

/// Error if `good` is false anywhere; the message gives the first such element of `values`. Checks on the CPU only.
inline void check_values(const char* op, const char* expected, const Tensor& values, const Tensor& good) {
  if (!values.device().is_cpu() || values.numel() == 0 || all(good).item<bool>()) return;
  const auto is_good = good.to(i64).to_vector<int64_t>();
  size_t at = 0;
  while (is_good[at]) ++at;
  fail(str("[", op, "] expected ", expected, ", got ", values.to_vector<double>()[at], " at element ", at,
           "; correct or clamp the values"));
}

/// A scalar with the dtype and device of `like`.
inline Tensor constant(Scalar value, const Tensor& like) { return full({}, value, {like.dtype(), like.device()}); }

/// The divisor of cross entropy's mean, a scalar with the dtype and device of `out`: the number of targets that are not
/// ignored, or the sum of their weights. On a device it is computed there, without synchronisation.
Tensor divisor_of(const Tensor& index, const Tensor& weight, const CrossEntropyArgs& args, const Tensor& out);

/// The shape without the dim of the classes: dim 1, or dim 0 if there is only one dim.
Shape without_classes(const Shape& shape);
/// Moves the classes last and joins all other dims: (rows, C).
Variable class_rows(const Variable& x);
/// Error unless x (N, C, ...) or (C) is floating and the options fit its classes.
void check_class_options(const char* op, const Variable& x, const CrossEntropyOptions& options);
/// Error unless target has a class index (i64) for each row of x.
void check_class_indices(const char* op, const Variable& x, const Tensor& target);

/// The shape without its last dim.
inline Shape without_last(const Shape& shape) { return Shape(shape.begin(), shape.end() - 1); }

/// Takes the mean or the sum of the losses, or leaves them as they are; then converts to the dtype of the loss.
inline Variable finish(const Wide& wide, const Variable& losses, Reduction reduction) {
  if (reduction == Reduction::none) return wide.round(losses);
  return wide.round(reduction == Reduction::mean ? mean(losses) : sum(losses));
}

/// x^p for x >= 0, p > 0. Zeros get no gradient, for any p.
inline Variable power(const Variable& x, double p) {
  const Tensor zero = eq(x.tensor(), constant(0, x.tensor()));
  return masked_fill(pow_scalar(masked_fill(x, zero, 1), p), zero, 0);
}

}  // namespace lockstep
