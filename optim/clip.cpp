// Clipping of gradients. Norms come from sums of squares over blocks of fixed length, so their bits depend neither on
// the number of threads nor, later, on how a parameter is cut into shards.
#include "optim/clip.h"

#include <cmath>

#include "tensor/ops.h"

namespace lockstep::optim {

double grad_norm(const std::vector<Variable>& parameters, double norm_type) {
  LOCKSTEP_CHECK(norm_type > 0, "[grad_norm] expected norm_type > 0, got ", norm_type);
  double total = 0;
  for (const Variable& parameter : parameters) {
    const Tensor& grad = parameter.grad();
    if (!grad.defined() || grad.numel() == 0) continue;
    if (norm_type == 2) { const double n = norm(grad).item(); total += n * n; }  // squares of huge f32 fit f64 only
    else if (std::isinf(norm_type)) { const double m = amax(abs(grad)).item(); total = std::isnan(m) || m > total ? m : total; }
    else total += sum(pow_scalar(abs(grad.to(f64)), norm_type)).item();
  }
  if (norm_type == 2) return std::sqrt(total);
  return std::isinf(norm_type) ? total : std::pow(total, 1 / norm_type);
}

double clip_grad_norm(const std::vector<Variable>& parameters, double max_norm, double norm_type, bool error_if_nonfinite) {
  LOCKSTEP_CHECK(max_norm >= 0, "[clip_grad_norm] expected max_norm >= 0, got ", max_norm);
  const double norm = grad_norm(parameters, norm_type);
  LOCKSTEP_CHECK(!error_if_nonfinite || std::isfinite(norm), "[clip_grad_norm] the norm of the gradients is ", norm);
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  for (const Variable& parameter : parameters) {
    if (parameter.grad().defined()) mul_scalar_(parameter.grad(), factor);
  }
  return norm;
}

void clip_grad_value(const std::vector<Variable>& parameters, double clip_value) {
  LOCKSTEP_CHECK(clip_value >= 0, "[clip_grad_value] expected clip_value >= 0, got ", clip_value);
  for (const Variable& parameter : parameters) {
    if (parameter.grad().defined()) clamp_(parameter.grad(), -clip_value, clip_value);
  }
}

}  // namespace lockstep::optim
