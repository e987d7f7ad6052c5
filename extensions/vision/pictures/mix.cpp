// MixUp (Zhang et al., 2018) and CutMix (Yun et al., 2019): see transforms.h.
#include <algorithm>
#include <cmath>

#include "data/draw.h"
#include "extensions/vision/pictures/transforms.h"
#include "tensor/ops.h"
#include "tensor/random_math.h"

namespace lockstep::data {
namespace {

/// Uniform in (0, 1).
double open_unit(Draws& draws) { return (double(draws.next() >> 12) + 0.5) * 0x1p-52; }

double normal_draw(Draws& draws) {
  const double u = open_unit(draws), t = open_unit(draws);
  return random_math::normals(u, t, 0.0, 1.0).first;
}

/// Logarithm of a Gamma(alpha, 1) variate (Marsaglia and Tsang, 2000). With a small alpha the variate itself could
/// underflow.
double log_gamma_draw(Draws& draws, double alpha) {
  if (alpha < 1) return log_gamma_draw(draws, alpha + 1) + std::log(open_unit(draws)) / alpha;
  const double d = alpha - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double z = normal_draw(draws), v = 1 + c * z;
    if (v <= 0) continue;
    const double cube = v * v * v;
    if (std::log(open_unit(draws)) < 0.5 * z * z + d - d * cube + d * std::log(cube)) return std::log(d * cube);
  }
}

double beta_draw(Draws& draws, double alpha) {
  const double a = log_gamma_draw(draws, alpha), b = log_gamma_draw(draws, alpha);
  return 1 / (1 + std::exp(b - a));
}

void check_batch(const char* op, const Example& batch, int64_t classes, double alpha) {
  LOCKSTEP_CHECK(alpha > 0, "[", op, "] expected alpha > 0, got ", alpha);
  LOCKSTEP_CHECK(classes >= 1, "[", op, "] expected classes >= 1, got ", classes);
  LOCKSTEP_CHECK(batch.more_inputs.empty() && batch.more_targets.empty(), "[", op,
                 "] expected one input and one target, got ", batch.inputs().size(), " and ", batch.targets().size(),
                 "; mix them in a collate function of your own");
  const auto& [x, y] = batch;
  LOCKSTEP_CHECK(
      x.defined() && y.defined() && x.device().is_cpu() && y.device().is_cpu() && x.dim() >= 1 && x.size(0) >= 1 &&
          y.dtype() == i64 && y.shape() == Shape{x.size(0)},
      "[", op, "] expected a batch (N, ...) on the cpu with i64 targets (N), got ",
      x.defined() && y.defined() ? str(x.shape(), " on ", x.device(), " and ", y.dtype(), y.shape()) : "none");
  const Tensor labels = y.contiguous();
  for (int64_t i = 0; i < labels.numel(); ++i)
    LOCKSTEP_CHECK(labels.data<int64_t>()[i] >= 0 && labels.data<int64_t>()[i] < classes, "[", op,
                   "] expected targets from 0 to ", classes - 1, ", got ", labels.data<int64_t>()[i], " for sample ", i,
                   "; correct the targets, or classes");
}

/// One-hot targets, mixed: `part` of each sample's own class, the rest of the previous sample's class.
Tensor mixed_targets(const Tensor& target, int64_t classes, double part) {
  const int64_t n = target.numel();
  const Tensor labels = target.contiguous(), out = zeros({n, classes}, {.device = cpu});
  for (int64_t i = 0; i < n; ++i) {
    float* row = out.data<float>() + i * classes;
    row[labels.data<int64_t>()[i]] += float(part);
    row[labels.data<int64_t>()[(i + n - 1) % n]] += float(1 - part);
  }
  return out;
}

}  // namespace

Example MixUp::operator()(const Example& batch) const {
  check_batch("MixUp", batch, classes, alpha);
  LOCKSTEP_CHECK(batch.input.dtype() == f32, "[MixUp] expected f32 inputs (use ToTensor), got ", batch.input.dtype());
  Draws draws(next_random_key());
  const double part = beta_draw(draws, alpha);
  const Tensor in = batch.input.contiguous(), out = empty_like(in);
  const int64_t n = in.size(0), each = in.numel() / n;
  const float own = float(part), other = float(1 - part);
  for (int64_t i = 0; i < n; ++i) {
    const float *a = in.data<float>() + i * each, *b = in.data<float>() + (i + n - 1) % n * each;
    float* to = out.data<float>() + i * each;
    for (int64_t j = 0; j < each; ++j) to[j] = own * a[j] + other * b[j];
  }
  return {out, mixed_targets(batch.target, classes, part)};
}

Example CutMix::operator()(const Example& batch) const {
  check_batch("CutMix", batch, classes, alpha);
  LOCKSTEP_CHECK(batch.input.dim() == 4, "[CutMix] expected pictures (N, channels, height, width), got ",
                 batch.input.shape(), "; unsqueeze(0) adds a batch");
  Draws draws(next_random_key());
  const double half = 0.5 * std::sqrt(1 - beta_draw(draws, alpha));
  const Tensor in = batch.input.contiguous(), out = in.clone();
  const int64_t n = in.size(0), h = in.size(2), w = in.size(3);
  const int64_t x = draws.below(w), y = draws.below(h), half_w = int64_t(half * double(w)),
                half_h = int64_t(half * double(h));
  const int64_t left = std::max<int64_t>(x - half_w, 0), right = std::min(x + half_w, w);
  const int64_t top = std::max<int64_t>(y - half_h, 0), bottom = std::min(y + half_h, h);
  if (left < right && top < bottom) {
    for (int64_t i = 0; i < n; ++i)
      out.select(0, i)
          .slice(1, top, bottom)
          .slice(2, left, right)
          .copy_(in.select(0, (i + n - 1) % n).slice(1, top, bottom).slice(2, left, right));
  }
  const double part = 1 - double((right - left) * (bottom - top)) / double(w * h);
  return {out, mixed_targets(batch.target, classes, part)};
}

}  // namespace lockstep::data
