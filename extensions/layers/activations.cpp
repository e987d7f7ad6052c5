// Rare activations and dropouts. See activations.h.
#include "extensions/layers/activations.h"

#include <algorithm>
#include <cmath>

namespace lockstep::nn {

namespace {

Tensor constant(const Variable& x, double value) { return full({}, value, {.dtype = x.dtype(), .device = x.device()}); }

/// x where x > 0, else slope * x. Written so that infinities are never multiplied by 0, which would give NaN.
Variable leaky(const Variable& x, const Variable& slope) {
  return relu(x) + slope * masked_fill(x, gt(x.tensor(), constant(x, 0)), 0);
}

double probability(const char* layer, double p) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "[", layer, "] expected p in [0, 1], got ", p);
  return p;
}

/// A dropout mask: 1 with probability 1 - p, else 0. One draw per index of the first `dims` dims; broadcasts over the
/// rest.
Tensor kept(const Variable& x, int dims, double p) {
  Shape shape = x.shape();
  std::fill(shape.begin() + dims, shape.end(), 1);
  return bernoulli(shape, 1 - p, {.dtype = x.dtype(), .device = x.device()});
}

double not_negative(const char* layer, double lambda) {
  LOCKSTEP_CHECK(lambda >= 0, "[", layer, "] expected lambda >= 0, got ", lambda);
  return lambda;
}

}  // namespace

PReLU::PReLU(const Options& o) {
  LOCKSTEP_CHECK(o.channels > 0, "[PReLU] expected channels > 0, got ", o.channels);
  weight = parameter({o.channels}, o.init);
}
Variable PReLU::forward(const Variable& x) {
  const int64_t channels = weight.size(0);
  if (channels == 1) return leaky(x, weight);
  LOCKSTEP_CHECK(x.dim() >= 2 && x.size(1) == channels, "[PReLU] expected input (N, ", channels, ", ...), got ",
                 x.shape(), "; reshape the input");
  Shape shape = Dims::filled(x.dim() - 1, 1);
  shape[0] = channels;
  return leaky(x, weight.view(shape));
}

RReLU::RReLU(const Options& options) : o(options) {
  LOCKSTEP_CHECK(std::isfinite(o.lower) && std::isfinite(o.upper) && o.lower <= o.upper,
                 "[RReLU] expected finite lower <= upper, got ", o.lower, " and ", o.upper);
}
Variable RReLU::forward(const Variable& x) {
  if (!is_training()) return leaky_relu(x, (o.lower + o.upper) / 2);
  return leaky(x, Variable(uniform_(empty_like(x.tensor()), o.lower, o.upper)));
}

Variable GLU::forward(const Variable& x) {
  LOCKSTEP_CHECK(x.dim() > 0 && x.size(dim) % 2 == 0, "[GLU] expected an even size in dim ", dim, ", got ", x.shape());
  const int64_t half = x.size(dim) / 2;
  return x.narrow(dim, 0, half) * sigmoid(x.narrow(dim, half, half));
}

ChannelDropout::ChannelDropout(const char* kind, const Options& o, const Dims& ranks)
    : p(probability(kind, o.p)), allowed_ranks(ranks) {}
Variable ChannelDropout::forward(const Variable& x) {
  LOCKSTEP_CHECK(std::count(allowed_ranks.begin(), allowed_ranks.end(), x.dim()), "[", kind(), "] expected ",
                 allowed_ranks, "-dimensional input, got ", x.shape(), "; reshape the input");
  if (!is_training() || p == 0) return x;
  return x * Variable(kept(x, x.dim() == allowed_ranks.back() ? 2 : 1, p) * (p < 1 ? 1 / (1 - p) : 0));
}

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

AlphaDropout::AlphaDropout(const Options& o) : p(probability("AlphaDropout", o.p)) {}
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
