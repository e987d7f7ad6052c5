// Rotary position embeddings. See rope.h.
#include "nn/rope.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace lockstep::nn {

namespace {

constexpr double pi = std::numbers::pi;

int64_t turned_of(const Rope& rope, int64_t head_size) { return int64_t(double(head_size) * rope.partial); }

/// Returns the index i, not rounded, of the pair of features that rotates `rotations` times in the course of the
/// original context. d: number of rotated features.
double index_of_rotations(const Rope& rope, double rotations, int64_t d) {
  return double(d) * std::log(double(rope.original_context) / (rotations * 2 * pi)) / (2 * std::log(rope.base));
}

void check_rope(const Rope& r, int64_t head_size) {
  const int64_t d = turned_of(r, head_size);
  LOCKSTEP_CHECK(r.partial > 0 && r.partial <= 1 && d > 0 && d % 2 == 0,
                 "[Rope] expected an even number of features to rotate, got ", d, ": ", r.partial,
                 " (partial) of a head of ", head_size, "; change either");
  LOCKSTEP_CHECK(
      r.base > 1 && std::isfinite(r.base) && r.factor > 0 && std::isfinite(r.factor) && r.original_context >= 0,
      "[Rope] expected finite base > 1, finite factor > 0 and original_context >= 0, got ", r.base, ", ", r.factor,
      " and ", r.original_context);
  LOCKSTEP_CHECK(r.scaling != Rope::Scaling::dynamic || d > 2,
                 "[Rope] dynamic scaling needs more than 2 features to rotate, got ", d,
                 "; raise partial, or take larger heads");
  LOCKSTEP_CHECK(
      r.scaling != Rope::Scaling::llama3 || (r.low_freq_factor > 0 && r.high_freq_factor > r.low_freq_factor),
      "[Rope] expected 0 < low_freq_factor < high_freq_factor, got ", r.low_freq_factor, " and ", r.high_freq_factor);
  LOCKSTEP_CHECK(r.scaling != Rope::Scaling::yarn || (r.beta_slow > 0 && r.beta_fast > 0),
                 "[Rope] expected beta_slow and beta_fast > 0, got ", r.beta_slow, " and ", r.beta_fast);
}

}  // namespace

std::vector<double> rope_frequencies(const Rope& given, int64_t head_size, int64_t context) {
  Rope rope = given;
  if (rope.original_context == 0) rope.original_context = context;
  check_rope(rope, head_size);
  const int64_t d = turned_of(rope, head_size);
  const auto original = double(rope.original_context), size = double(d);
  double base = rope.base;
  if (rope.scaling == Rope::Scaling::dynamic && context > rope.original_context)
    base *= std::pow(rope.factor * double(context) / original - (rope.factor - 1), size / (size - 2));
  std::vector<double> f(size_t(d / 2));
  for (size_t i = 0; i < f.size(); ++i) f[i] = std::pow(base, -2 * double(i) / size);
  switch (rope.scaling) {
    case Rope::Scaling::none:
    case Rope::Scaling::dynamic: break;
    case Rope::Scaling::linear:
      for (double& one : f) one /= rope.factor;
      break;
    case Rope::Scaling::llama3:
      for (double& one : f) {
        const double rotations = original * one / (2 * pi);  // original context / wavelength
        const double s =
            std::clamp((rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0., 1.);
        one = (1 - s) * one / rope.factor + s * one;
      }
      break;
    case Rope::Scaling::yarn: {
      double low = index_of_rotations(rope, rope.beta_fast, d), high = index_of_rotations(rope, rope.beta_slow, d);
      if (rope.truncate) low = std::floor(low), high = std::ceil(high);
      low = std::max(low, 0.), high = std::min(high, size - 1);
      if (low == high) high += 0.001;
      for (size_t i = 0; i < f.size(); ++i) {
        const double ramp = std::clamp((double(i) - low) / (high - low), 0., 1.);
        f[i] = f[i] / rope.factor * ramp + f[i] * (1 - ramp);
      }
    }
  }
  return f;
}

double rope_attention_factor(const Rope& rope) {
  if (rope.scaling != Rope::Scaling::yarn) return 1;
  return rope.attention_factor.value_or(rope.factor <= 1 ? 1 : 0.1 * std::log(rope.factor) + 1);
}

RopeTable::RopeTable(const Rope& rope, int64_t head_size, int64_t context) : rope_(rope), head_size_(head_size) {
  if (rope_.original_context == 0) rope_.original_context = context;
  check_rope(rope_, head_size);
}

RopeTable::Rows RopeTable::rows(int64_t first, int64_t end, DType dtype, Device device) {
  const bool grows = rope_.scaling == Rope::Scaling::dynamic && end > rope_.original_context;
  const int64_t basis = grows ? end : 0;  // dynamic frequencies hold for this length only
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(made_.begin(), made_.end(), [&](const Rows& r) {
    return r.dtype == dtype && r.device == device && (r.basis > 0) == grows;
  });
  if (found != made_.end() && found->basis == basis && found->first <= first && found->end >= end) return *found;
  // Round up, so that generation does not recompute the table for every token.
  if (!grows) first = 0, end = int64_t(std::bit_ceil(uint64_t(std::max<int64_t>(end, 64))));
  const Tensor frequency = Tensor::from(rope_frequencies(rope_, head_size_, std::max(basis, rope_.original_context)),
                                        {turned_of(rope_, head_size_) / 2});
  const Tensor angle = outer(arange(double(first), double(end), 1, {.dtype = f64, .device = cpu}), frequency.to(cpu));
  const double scale = rope_attention_factor(rope_);
  const auto rounded = [&](const Tensor& of) { return (scale == 1 ? of : mul_scalar(of, scale)).to(dtype).to(device); };
  Rows made{dtype, device, basis, first, end, {rounded(cos(angle)), rounded(sin(angle))}};
  if (found == made_.end()) made_.push_back(made);
  else *found = made;
  return made;
}

RopeTable::Angles RopeTable::at(int64_t first, int64_t tokens, DType dtype, Device device) {
  const Rows all = rows(first, first + tokens, dtype, device);
  return {all.angles.cosine.narrow(0, first - all.first, tokens), all.angles.sine.narrow(0, first - all.first, tokens)};
}

RopeTable::Angles RopeTable::at(const Tensor& positions, int64_t length, DType dtype, Device device) {
  const Rows all = rows(0, length, dtype, device);
  const Tensor index = positions.to(device);
  return {index_select(all.angles.cosine, 0, index), index_select(all.angles.sine, 0, index)};
}

}  // namespace lockstep::nn
