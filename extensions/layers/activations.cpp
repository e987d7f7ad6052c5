// Activations that few models need, and the dropout of networks with SELU. See activations.h.
#include "extensions/layers/activations.h"

#include <algorithm>
#include <cmath>

namespace lockstep::nn {

namespace {

Tensor constant(const Variable& x, double value) { return full({}, value, {.dtype = x.dtype(), .device = x.device()}); }

double not_negative(const char* layer, double lambda) {
  LOCKSTEP_CHECK(lambda >= 0, "[", layer, "] expected lambda >= 0, got ", lambda);
  return lambda;
}

}  // namespace

CELU::CELU(const Options& o) : alpha(o.alpha) { LOCKSTEP_CHECK(alpha > 0, "[CELU] expected alpha > 0, got ", alpha); }

Hardtanh::Hardtanh(const Options& options) : o(options) {
  LOCKSTEP_CHECK(o.low <= o.high, "[Hardtanh] expected low <= high, got ", o.low, " and ", o.high);
}

Hardshrink::Hardshrink(const Options& o) : lambda(not_negative("Hardshrink", o.lambda)) {}
Variable Hardshrink::forward(const Variable& x) { return masked_fill(x, le(abs(x.tensor()), constant(x, lambda)), 0); }

Softshrink::Softshrink(const Options& o) : lambda(not_negative("Softshrink", o.lambda)) {}
Variable Softshrink::forward(const Variable& x) {
  return masked_fill(x - Variable(sign(x.tensor()) * lambda), le(abs(x.tensor()), constant(x, lambda)), 0);
}

Threshold::Threshold(const Options& options) : o(options) {
  LOCKSTEP_CHECK(!std::isnan(o.threshold), "[Threshold] expected a threshold other than NaN, got ", o.threshold);
}
Variable Threshold::forward(const Variable& x) {
  return masked_fill(x, le(x.tensor(), constant(x, o.threshold)), o.value);
}

Variable Softmax2d::forward(const Variable& x) {
  LOCKSTEP_CHECK(x.dim() == 3 || x.dim() == 4, "[Softmax2d] expected input (N, C, H, W) or (C, H, W), got ", x.shape());
  return softmax(x, -3);
}

AlphaDropout::AlphaDropout(const Options& o) : p(o.p) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "[AlphaDropout] expected p in [0, 1], got ", p);
}
Variable AlphaDropout::forward(const Variable& x) {
  LOCKSTEP_CHECK(!channels || x.dim() >= 2, "[", kind(), "] expected input (N, C, ...), got ", x.shape());
  if (!is_training() || p == 0) return x;
  if (p == 1) return x * 0.0;
  const double lowest = 1.7580993408473766, a = 1 / std::sqrt((lowest * lowest * p + 1) * (1 - p));
  Shape shape = x.shape();
  if (channels) std::fill(shape.begin() + 2, shape.end(), 1);
  const Tensor stays = bernoulli(shape, 1 - p, {.dtype = x.dtype(), .device = x.device()});
  return x * Variable(stays * a) + Variable((stays - 1) * (lowest * a) + lowest * a * p);
}

}  // namespace lockstep::nn
