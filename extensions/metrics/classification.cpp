// Counts of classes, and what scikit-learn computes from them. See classification.h.
#include "extensions/metrics/classification.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "extensions/metrics/inputs.h"

namespace lockstep::metrics {

namespace {

/// The number of classes. Error if it is impossible.
int64_t checked_classes(const char* op, int64_t classes, const std::optional<double>& threshold) {
  LOCKSTEP_CHECK(classes >= 2, "[", op, "] expected 2 classes or more, got ", classes, "; set `classes`");
  LOCKSTEP_CHECK(!threshold || classes == 2, "[", op, "] expected 2 classes, as there is a threshold, got ", classes,
                 "; leave the threshold out, and give scores with a class dim");
  return classes;
}

/// The mean of scores, without NaNs. If all weights are 0, they count equally (NumPy's nanmean and average).
double mean_of(const std::vector<double>& scores, const std::vector<double>& weights) {
  double sum = 0, weight = 0, plain = 0, count = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) continue;
    sum += weights[i] * scores[i], weight += weights[i];
    plain += scores[i], ++count;
  }
  return count == 0 ? NAN : weight > 0 ? sum / weight : plain / count;
}

}  // namespace

void Accuracy::add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const {
  const ClassPairs pairs = class_pairs(
      {.op = name(), .dim = o_.dim, .threshold = o_.threshold, .ignore_index = o_.ignore_index}, predictions, targets);
  for (size_t i = 0; i < pairs.actual.size(); ++i) batch[0] += pairs.actual[i] == pairs.predicted[i];
  batch[1] += double(pairs.actual.size());
}

Tensor Accuracy::result(const std::vector<double>& state) const {
  return numbers_on_cpu({state[0] / counted(state[1])}, {});
}

TopKAccuracy::TopKAccuracy(TopKAccuracyOptions options) : Metric("TopKAccuracy", 2), o_(options) {
  LOCKSTEP_CHECK(o_.k >= 1, "[TopKAccuracy] expected k >= 1, got ", o_.k);
}

void TopKAccuracy::add(const Tensor& scores, const Tensor& targets, std::vector<double>& batch) const {
  const ScoredRows rows = scored_rows({.op = name(), .dim = o_.dim, .ignore_index = o_.ignore_index}, scores, targets);
  const int64_t classes = rows.scores.size(1);
  // As many rows at once as have about a million scores.
  const int64_t at_once = std::max<int64_t>(1, (int64_t(1) << 20) / classes), n = rows.scores.size(0);
  for (int64_t first = 0; first < n; first += at_once) {
    const int64_t count = std::min(at_once, n - first);
    const std::vector<double> block = rows.scores.narrow(0, first, count).to_vector<double>();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t target = rows.actual[size_t(first + i)];
      if (target == o_.ignore_index) continue;
      const double* const row = &block[size_t(i * classes)];
      int64_t before = 0;  // classes that are named before the target
      for (int64_t c = 0; c < classes; ++c) before += row[c] > row[target] || (row[c] == row[target] && c > target);
      batch[0] += before < o_.k && !std::isnan(row[target]);
      batch[1] += 1;
    }
  }
}

Tensor TopKAccuracy::result(const std::vector<double>& state) const {
  return numbers_on_cpu({state[0] / counted(state[1])}, {});
}

ConfusionMatrix::ConfusionMatrix(ConfusionMatrixOptions options)
    : Metric("ConfusionMatrix",
             options.classes * checked_classes("ConfusionMatrix", options.classes, options.threshold)),
      o_(options) {}

void ConfusionMatrix::add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const {
  const ClassPairs pairs = class_pairs(
      {.op = name(), .classes = o_.classes, .dim = o_.dim, .threshold = o_.threshold, .ignore_index = o_.ignore_index},
      predictions, targets);
  for (size_t i = 0; i < pairs.actual.size(); ++i) ++batch[size_t(pairs.actual[i] * o_.classes + pairs.predicted[i])];
}

Tensor ConfusionMatrix::result(const std::vector<double>& state) const {
  const size_t n = size_t(o_.classes);
  const Shape shape{o_.classes, o_.classes};
  if (o_.normalize == Normalize::none) return numbers_on_cpu(state, shape).to(i64);
  std::vector<double> sums(n), shares(n * n);  // `all` has one sum, the others one per row or column
  const auto sum_of = [&](size_t i) -> double& {
    return sums[o_.normalize == Normalize::all ? 0 : o_.normalize == Normalize::targets ? i / n : i % n];
  };
  for (size_t i = 0; i < n * n; ++i) sum_of(i) += state[i];
  for (size_t i = 0; i < n * n; ++i) shares[i] = sum_of(i) > 0 ? state[i] / sum_of(i) : 0;
  return numbers_on_cpu(shares, shape);
}

FBetaScore::FBetaScore(const char* name, double beta, ClassScoreOptions options)
    : Metric(name, 3 * checked_classes(name, options.classes, options.threshold)),
      of_predicted_(1 / (1 + beta * beta)),
      of_actual_(1 - of_predicted_),
      o_(options) {
  LOCKSTEP_CHECK(beta >= 0, "[", name, "] expected beta >= 0, got ", beta);
  LOCKSTEP_CHECK(o_.average != Average::binary || o_.classes == 2, "[", name,
                 "] expected 2 classes with Average::binary, got ", o_.classes,
                 "; choose micro, macro, weighted or none");
}

Recall::Recall(ClassScoreOptions options) : FBetaScore("Recall", std::numeric_limits<double>::infinity(), options) {}

// The state has three numbers for each class: hits, predictions, targets.
void FBetaScore::add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const {
  const ClassPairs pairs = class_pairs(
      {.op = name(), .classes = o_.classes, .dim = o_.dim, .threshold = o_.threshold, .ignore_index = o_.ignore_index},
      predictions, targets);
  for (size_t i = 0; i < pairs.actual.size(); ++i) {
    const size_t predicted = size_t(pairs.predicted[i]), actual = size_t(pairs.actual[i]);
    if (predicted == actual) ++batch[3 * actual];
    ++batch[3 * predicted + 1];
    ++batch[3 * actual + 2];
  }
}

Tensor FBetaScore::result(const std::vector<double>& state) const {
  const auto score = [&](double hits, double predicted, double actual) {
    const double all = of_predicted_ * predicted + of_actual_ * actual;
    return all > 0 ? hits / all : o_.zero_division;
  };
  std::vector<double> scores, weights;
  double hits = 0, predicted = 0, actual = 0;
  for (size_t i = 0; i < state.size(); i += 3) {
    scores.push_back(score(state[i], state[i + 1], state[i + 2]));
    const bool occurs = state[i + 1] + state[i + 2] > 0;
    weights.push_back(o_.average == Average::weighted ? state[i + 2] : occurs);
    if (o_.average == Average::macro && !occurs) scores.back() = NAN;
    hits += state[i], predicted += state[i + 1], actual += state[i + 2];
  }
  counted(actual);
  switch (o_.average) {
    case Average::binary: return numbers_on_cpu({scores[1]}, {});
    case Average::micro: return numbers_on_cpu({score(hits, predicted, actual)}, {});
    case Average::none: return numbers_on_cpu(scores, {o_.classes});
    default: return numbers_on_cpu({mean_of(scores, weights)}, {});
  }
}

}  // namespace lockstep::metrics
