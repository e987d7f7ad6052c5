// AUROC by ranks of sorted scores (Mann-Whitney), in integers, so that it does not depend on the order of samples.
#include "extensions/metrics/auroc.h"

#include <algorithm>
#include <cmath>

#include "extensions/metrics/inputs.h"

namespace lockstep::metrics {

namespace {

/// A sample's score for a class, and whether it is of the class.
struct Scored {
  double score;
  bool positive;
};

/// NaN without samples of the class, or without others.
double area_under(std::vector<Scored> samples) {
  std::sort(samples.begin(), samples.end(), [](const Scored& a, const Scored& b) { return a.score < b.score; });
  int64_t positives = 0, negatives = 0, twice = 0;  // twice: pairs in the right order count 2, pairs of equals 1
  for (size_t i = 0; i < samples.size();) {
    int64_t in_group[2] = {};  // samples of equal scores: others, of the class
    const double score = samples[i].score;
    for (; i < samples.size() && samples[i].score == score; ++i) ++in_group[samples[i].positive];
    twice += in_group[1] * (2 * negatives + in_group[0]);
    negatives += in_group[0], positives += in_group[1];
  }
  return positives == 0 || negatives == 0 ? NAN : double(twice) / (2. * double(positives) * double(negatives));
}

}  // namespace

AUROC::AUROC(AUROCOptions options) : Metric("AUROC", 0, State::list), o_(options) {
  LOCKSTEP_CHECK(o_.classes >= 2, "[AUROC] expected 2 classes or more, got ", o_.classes, "; set `classes`");
  LOCKSTEP_CHECK(o_.average != Average::binary && o_.average != Average::micro,
                 "[AUROC] expected macro, weighted or none, got binary or micro; with 2 classes any of them gives the "
                 "area of class 1");
}

// The state has a row for each sample: its class, then its scores.
void AUROC::add(const Tensor& scores, const Tensor& targets, std::vector<double>& batch) const {
  Reading reading{.op = name(), .classes = o_.classes, .dim = o_.dim, .ignore_index = o_.ignore_index};
  Tensor of_each = scores;
  if (o_.classes == 2 && scores.shape() == targets.shape()) {  // repeats the score of class 1; the second one is kept
    Shape pair = scores.shape();
    pair.push_back(2);
    of_each = scores.unsqueeze(-1).expand(pair);
    reading.dim = -1;
  }
  const ScoredRows rows = scored_rows(reading, of_each, targets);
  const std::vector<double> values = rows.scores.to_vector<double>();
  const size_t n = size_t(o_.classes), kept = size_t(columns());
  for (size_t i = 0; i < rows.actual.size(); ++i) {
    if (rows.actual[i] == o_.ignore_index) continue;
    batch.push_back(double(rows.actual[i]));
    batch.insert(batch.end(), values.begin() + int64_t((i + 1) * n - kept), values.begin() + int64_t((i + 1) * n));
  }
}

Tensor AUROC::result(const std::vector<double>& state) const {
  const size_t kept = size_t(columns()), row = kept + 1;
  counted(double(state.size()));
  const bool has_nan = std::any_of(state.begin(), state.end(), [](double x) { return std::isnan(x); });
  std::vector<double> areas, weights;
  for (size_t c = 0; c < kept; ++c) {
    const double own = kept == 1 ? 1 : double(c);
    std::vector<Scored> samples;
    double count = 0;
    for (size_t i = 0; i < state.size(); i += row) {
      samples.push_back({state[i + 1 + c], state[i] == own});
      count += state[i] == own;
    }
    areas.push_back(has_nan ? NAN : area_under(std::move(samples)));
    weights.push_back(count);
  }
  if (kept == 1) return numbers_on_cpu(areas, {});
  if (o_.average == Average::none) return numbers_on_cpu(areas, {o_.classes});
  double sum = 0, weight = 0;
  for (size_t c = 0; c < kept; ++c) {
    if (std::isnan(areas[c])) continue;
    const double w = o_.average == Average::macro ? 1 : weights[c];
    sum += w * areas[c], weight += w;
  }
  return numbers_on_cpu({weight > 0 ? sum / weight : NAN}, {});
}

}  // namespace lockstep::metrics
