// Connectionist temporal classification: forward and backward sums over all alignments, as logarithms in f64.
#include "extensions/recurrent/ctc.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/autocast.h"
#include "autograd/tape.h"

namespace lockstep {
namespace {

constexpr double impossible = -INFINITY;

double log_sum(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == impossible ? a : a + std::log1p(std::exp(b - a));
}

/// One sequence: `steps` rows of log-probabilities. Each row begins `stride` numbers after the row before.
struct CtcSequence {
  const double* x;
  int64_t steps, stride, classes, blank;
  std::vector<int64_t> labels;  ///< labels, with a blank before, between and after them

  double at(int64_t t, size_t s) const { return x[t * stride + labels[s]]; }
  /// True if labels[s] may directly follow labels[s - 2]: if labels[s] is no blank and differs from labels[s - 2].
  bool skips(size_t s) const { return s >= 2 && labels[s] != blank && labels[s] != labels[s - 2]; }

  /// For each step and label, the log-probability of all paths from the beginning to this label at this step. With
  /// `back`: of all paths from this label at this step to the end.
  std::vector<double> sums(bool back) const {
    const size_t count = labels.size();
    std::vector<double> all(size_t(steps) * count, impossible);
    const auto place = [&](int64_t i, size_t s) -> double& {
      return all[back ? size_t(steps - 1 - i) * count + count - 1 - s : size_t(i) * count + s];
    };
    const auto label = [&](size_t s) { return back ? count - 1 - s : s; };
    for (int64_t i = 0; i < steps; ++i)
      for (size_t s = 0; s < count; ++s) {
        double ways = i == 0 && s < 2 ? 0 : impossible;
        if (i > 0) {
          ways = place(i - 1, s);
          if (s >= 1) ways = log_sum(ways, place(i - 1, s - 1));
          if (s >= 2 && skips(back ? label(s) + 2 : s)) ways = log_sum(ways, place(i - 1, s - 2));
        }
        place(i, s) = ways + at(back ? steps - 1 - i : i, label(s));
      }
    return all;
  }

  /// Returns the loss. If `slopes` is not null, also adds the loss's derivative with respect to x[i] to slopes[i].
  double loss(double* slopes) const {
    const size_t count = labels.size();
    if (steps == 0) return count == 1 ? 0 : INFINITY;
    const std::vector<double> from = sums(false);
    double total = from[from.size() - 1];
    if (count > 1) total = log_sum(total, from[from.size() - 2]);
    if (!slopes) return -total;
    const std::vector<double> to = sums(true);
    for (int64_t t = 0; t < steps; ++t)
      for (size_t s = 0; s < count; ++s)
        slopes[t * stride + labels[s]] -=
            std::exp(from[size_t(t) * count + s] + to[size_t(t) * count + s] - at(t, s) - total);
    return -total;
  }
};

}  // namespace

Variable ctc_loss(const Variable& input, const Tensor& target, const std::vector<int64_t>& input_lengths,
                  const std::vector<int64_t>& target_lengths, const CtcOptions& options, Reduction reduction) {
  LOCKSTEP_CHECK(is_floating(input.dtype()) && (input.dim() == 2 || input.dim() == 3),
                 "[ctc_loss] expected floating log probabilities (T, N, C) or (T, C), got ", input.dtype(), " ",
                 input.shape(), "; convert or reshape them");
  const int64_t steps = input.size(0), n = input.dim() == 3 ? input.size(1) : 1, classes = input.size(-1);
  LOCKSTEP_CHECK(options.blank >= 0 && options.blank < classes, "[ctc_loss] expected a blank in [0, ", classes,
                 "), got ", options.blank);
  LOCKSTEP_CHECK(int64_t(input_lengths.size()) == n && int64_t(target_lengths.size()) == n, "[ctc_loss] expected ", n,
                 " input lengths and target lengths, got ", input_lengths.size(), " and ", target_lengths.size());
  const int64_t all = std::accumulate(target_lengths.begin(), target_lengths.end(), int64_t(0));
  const bool padded = target.dim() == 2;
  LOCKSTEP_CHECK(target.dtype() == i64 && (padded ? target.size(0) == n : target.dim() == 1 && target.numel() == all),
                 "[ctc_loss] expected targets i64 (", n, ", S), or concatenated (", all, "), got ", target.dtype(), " ",
                 target.shape(), "; convert or reshape them");
  const int64_t widest = padded ? target.size(1) : all;
  const auto words = target.to_vector<int64_t>();
  const Wide wide(input);
  const Variable x = wide(input);
  const std::vector<double> values = x.tensor().to_vector<double>();
  const bool wanted = needs_grad({&x});
  std::vector<double> slopes(wanted ? values.size() : 0), losses, parts;
  for (int64_t i = 0, next = 0; i < n; ++i) {
    const int64_t length = target_lengths[size_t(i)], begin = padded ? i * widest : next,
                  last = input_lengths[size_t(i)];
    LOCKSTEP_CHECK(last >= 0 && last <= steps && length >= 0 && length <= widest,
                   "[ctc_loss] expected input lengths in [0, ", steps, "] and target lengths in [0, ", widest,
                   "], got ", last, " and ", length, " of sequence ", i, "; correct the lengths");
    CtcSequence sequence{values.data() + i * classes, last, n * classes, classes, options.blank, {options.blank}};
    for (int64_t k = begin; k < begin + length; ++k) {
      const int64_t word = words[size_t(k)];
      LOCKSTEP_CHECK(word >= 0 && word < classes && word != options.blank, "[ctc_loss] expected targets in [0, ",
                     classes, ") without the blank ", options.blank, ", got ", word, " in sequence ", i);
      sequence.labels.insert(sequence.labels.end(), {word, options.blank});
    }
    next += length;
    double* const own = wanted ? slopes.data() + i * classes : nullptr;
    double loss = sequence.loss(own);
    if (options.zero_infinity && loss == INFINITY) {
      loss = 0;
      for (int64_t t = 0; wanted && t < last; ++t) std::fill_n(own + t * n * classes, classes, 0.0);
    }
    losses.push_back(loss);
    parts.push_back(reduction == Reduction::mean ? double(n * std::max<int64_t>(length, 1)) : 1);
  }
  const auto like = [&](const std::vector<double>& numbers, const Shape& shape) {
    return Tensor::from(numbers, shape).to(x.dtype()).to(x.device());
  };
  const Shape shape = input.dim() == 3 ? Shape{n} : Shape{};
  Variable each(like(losses, shape));
  if (wanted)
    each = record("ctc_loss", {&x}, each.tensor(), [slope = like(slopes, x.shape())](Backward& b) {
      const Tensor grad = b.grad();
      b.give(0, mul(slope, grad.dim() == 1 ? grad.reshape({1, grad.numel(), 1}) : grad));
    });
  if (reduction == Reduction::none) return wide.round(each);
  return wide.round(sum(div(each, like(parts, shape))));
}

}  // namespace lockstep
