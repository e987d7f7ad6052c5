// AdaptiveLogSoftmaxWithLoss: softmax over clusters of classes. See adaptive_softmax.h.
#include "extensions/layers/adaptive_softmax.h"

#include <cmath>

namespace lockstep::nn {

namespace {

AdaptiveLogSoftmaxWithLoss::Options checked_cutoffs(AdaptiveLogSoftmaxWithLoss::Options o) {
  int64_t last = 0;
  for (const int64_t cut : o.cutoffs) {
    LOCKSTEP_CHECK(cut > last && cut < o.classes, "[AdaptiveLogSoftmaxWithLoss] expected increasing cutoffs from 1 to ",
                   o.classes - 1, ", got ", cut, last ? str(" after ", last) : "");
    last = cut;
  }
  LOCKSTEP_CHECK(!o.cutoffs.empty(), "[AdaptiveLogSoftmaxWithLoss] expected at least one cutoff, got none");
  LOCKSTEP_CHECK(o.in > 0 && o.div_value > 0, "[AdaptiveLogSoftmaxWithLoss] expected in and div_value > 0, got ", o.in,
                 " and ", o.div_value);
  o.cutoffs.push_back(o.classes);
  return o;
}

}  // namespace

AdaptiveLogSoftmaxWithLoss::AdaptiveLogSoftmaxWithLoss(const Options& options)
    : o(checked_cutoffs(options)),
      head({.in = o.in, .out = o.cutoffs[0] + int64_t(o.cutoffs.size()) - 1, .bias = o.head_bias}) {
  for (size_t i = 0; i + 1 < o.cutoffs.size(); ++i) {
    const int64_t inner = int64_t(double(o.in) / std::pow(o.div_value, double(i + 1)));
    LOCKSTEP_CHECK(inner >= 1, "[AdaptiveLogSoftmaxWithLoss] expected a div_value that leaves cluster ", i,
                   " at least 1 feature, got div_value ", o.div_value, " for in = ", o.in);
    tail.push_back(Sequential(Linear({.in = o.in, .out = inner, .bias = false}),
                              Linear({.in = inner, .out = o.cutoffs[i + 1] - o.cutoffs[i], .bias = false})));
  }
}

std::string AdaptiveLogSoftmaxWithLoss::options() const {
  return str("in ", o.in, ", classes ", o.classes, ", clusters ", tail.size());
}

AdaptiveLogSoftmaxWithLoss::Output AdaptiveLogSoftmaxWithLoss::forward(const Variable& x, const Tensor& target) {
  const bool single = x.dim() == 1;
  LOCKSTEP_CHECK((single || x.dim() == 2) && x.size(-1) == o.in && target.dtype() == i64 &&
                     target.dim() == x.dim() - 1 && (single || target.size(0) == x.size(0)),
                 "[AdaptiveLogSoftmaxWithLoss] expected input (N, ", o.in, ") and target i64 (N), or both without N, ",
                 "got ", x.shape(), " and ", target.dtype(), " ", target.shape(), "; convert or reshape them");
  const Variable rows = single ? x.unsqueeze(0) : x;
  const auto classes = target.reshape({rows.size(0)}).to_vector<int64_t>();
  const size_t clusters = o.cutoffs.size() - 1;
  // For each cluster: the rows of x whose target is in it (of), and those targets minus its first class (within).
  std::vector<std::vector<int64_t>> of(clusters), within(clusters);
  std::vector<int64_t> in_head;
  for (size_t row = 0; row < classes.size(); ++row) {
    const int64_t c = classes[row];
    LOCKSTEP_CHECK(c >= 0 && c < o.classes, "[AdaptiveLogSoftmaxWithLoss] expected targets in [0, ", o.classes,
                   "), got ", c, "; correct the targets");
    size_t i = 0;
    while (c >= o.cutoffs[i]) ++i;
    in_head.push_back(i == 0 ? c : o.cutoffs[0] + int64_t(i) - 1);
    if (i == 0) continue;
    of[i - 1].push_back(int64_t(row));
    within[i - 1].push_back(c - o.cutoffs[i - 1]);
  }
  const auto column = [&](const std::vector<int64_t>& numbers) {
    return Tensor::from(numbers, {int64_t(numbers.size()), 1}).to(x.device());
  };
  Variable output = gather(log_softmax(head(rows), 1), 1, column(in_head)).squeeze(1);
  for (size_t i = 0; i < clusters; ++i) {
    // Empty clusters run too: ranks must run the same modules, and every parameter must get a gradient.
    const Tensor places = column(of[i]).squeeze(1);
    const Variable scores = log_softmax(tail[i](index_select(rows, 0, places)), 1);
    output = scatter_add(output, 0, places, gather(scores, 1, column(within[i])).squeeze(1).to(output.dtype()));
  }
  return {single ? output.squeeze(0) : output, neg(mean(output))};
}

Variable AdaptiveLogSoftmaxWithLoss::log_prob(const Variable& x) {
  LOCKSTEP_CHECK(x.dim() == 2 && x.size(1) == o.in, "[AdaptiveLogSoftmaxWithLoss] expected input (N, ", o.in, "), got ",
                 x.shape(), "; reshape the input");
  const Variable scores = log_softmax(head(x), 1);
  std::vector<Variable> all{scores.narrow(1, 0, o.cutoffs[0])};
  for (size_t i = 0; i < tail.size(); ++i)
    all.push_back(add(log_softmax(tail[i](x), 1), scores.narrow(1, o.cutoffs[0] + int64_t(i), 1)));
  return cat(all, 1);
}

Tensor AdaptiveLogSoftmaxWithLoss::predict(const Variable& x) {
  const NoGrad no_grad;
  return x.dim() == 1 ? argmax(log_prob(x.unsqueeze(0)).tensor(), 1).squeeze(0) : argmax(log_prob(x).tensor(), 1);
}

}  // namespace lockstep::nn
