// Rare activations and dropouts. See activations.h.
#include "extensions/layers/activations.h"

#include <algorithm>
#include <cmath>

#include "autograd/loss_common.h"

namespace lockstep::nn {

namespace {

/// x where x > 0, else slope * x. Written so that infinities are never multiplied by 0, which would give NaN.
Variable leaky(const Variable& x, const Variable& slope) {
  return relu(x) + slope * masked_fill(x, gt(x.tensor(), constant(0, x.tensor())), 0);
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

/// True where |x| <= lambda.
Tensor near_zero(const Variable& x, double lambda) { return le(abs(x.tensor()), constant(lambda, x.tensor())); }

double not_negative(const char* layer, double lambda) {
  LOCKSTEP_CHECK(lambda >= 0, "[", layer, "] expected lambda >= 0, got ", lambda);
  return lambda;
}

}  // namespace

Variable PReLU::forward(const Variable& x) {
  const int64_t channels = weight.size(0);
  if (channels == 1) return leaky(x, weight);
  LOCKSTEP_CHECK(x.dim() >= 2 && x.size(1) == channels, "[PReLU] expected input (N, ", channels, ", ...), got ",
                 x.shape(), "; reshape the input");
  Shape shape = Dims::filled(x.dim() - 1, 1);
  shape[0] = channels;
  return leaky(x, weight.view(shape));
}

Variable RReLU::forward(const Variable& x) {
  if (!is_training()) return leaky_relu(x, (o.lower + o.upper) / 2);
  return leaky(x, Variable(uniform_(empty_like(x.tensor()), o.lower, o.upper)));
}

ChannelDropout::ChannelDropout(const char* kind, const Options& o, const Dims& ranks)
    : p(probability(kind, o.p)), allowed_ranks(ranks) {}
Variable ChannelDropout::forward(const Variable& x) {
  LOCKSTEP_CHECK(std::count(allowed_ranks.begin(), allowed_ranks.end(), x.dim()), "[", kind(), "] expected ",
                 allowed_ranks, "-dimensional input, got ", x.shape(), "; reshape the input");
  if (!is_training() || p == 0) return x;
  return x * Variable(kept(x, x.dim() == allowed_ranks.back() ? 2 : 1, p) * (p < 1 ? 1 / (1 - p) : 0));
}

Hardshrink::Hardshrink(const Options& o) : lambda(not_negative("Hardshrink", o.lambda)) {}
Variable Hardshrink::forward(const Variable& x) { return masked_fill(x, near_zero(x, lambda), 0); }

Softshrink::Softshrink(const Options& o) : lambda(not_negative("Softshrink", o.lambda)) {}
Variable Softshrink::forward(const Variable& x) {
  return masked_fill(x - Variable(sign(x.tensor()) * lambda), near_zero(x, lambda), 0);
}

Variable Threshold::forward(const Variable& x) {
  return masked_fill(x, le(x.tensor(), constant(o.threshold, x.tensor())), o.value);
}

AlphaDropout::AlphaDropout(const Options& o) : p(probability("AlphaDropout", o.p)) {}
Variable AlphaDropout::forward(const Variable& x) {
  LOCKSTEP_CHECK(!channels || x.dim() >= 2, "[", kind(), "] expected input (N, C, ...), got ", x.shape());
  if (!is_training() || p == 0) return x;
  if (p == 1) return x * 0.0;
  const double lowest = 1.7580993408473766, a = 1 / std::sqrt((lowest * lowest * p + 1) * (1 - p));
  const Tensor stays = kept(x, channels ? 2 : x.dim(), p);
  return x * Variable(stays * a) + Variable((stays - 1) * (lowest * a) + lowest * a * p);
}

}  // namespace lockstep::nn
