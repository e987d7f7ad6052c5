// Draws by weight: from the running sums of the weights, or by the smallest arrival times. See samplers.h.
#include "extensions/samplers/samplers.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "data/draw.h"

namespace lockstep::data {

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, const WeightedOptions& options)
    : weights_(std::move(weights)), options_(options) {
  int64_t positive = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    LOCKSTEP_CHECK(weights_[i] >= 0 && std::isfinite(weights_[i]),
                   "[WeightedRandomSampler] expected finite weights >= 0, got ", weights_[i], " for index ", i);
    positive += weights_[i] > 0;
  }
  std::partial_sum(weights_.begin(), weights_.end(), std::back_inserter(sums_));
  LOCKSTEP_CHECK(positive > 0 && std::isfinite(sums_.back()),
                 "[WeightedRandomSampler] expected weights with a finite sum > 0, got ", weights_.size(),
                 " weights with sum ", weights_.empty() ? 0 : sums_.back());
  LOCKSTEP_CHECK(options_.num_samples >= 1, "[WeightedRandomSampler] expected num_samples >= 1, got ",
                 options_.num_samples, "; set it, for example to the size of the dataset");
  LOCKSTEP_CHECK(options_.replacement || options_.num_samples <= positive, "[WeightedRandomSampler] expected at most ",
                 positive, " samples, the number of positive weights, got ", options_.num_samples,
                 "; take fewer, or draw with replacement");
}

std::vector<int64_t> WeightedRandomSampler::operator()(int64_t epoch) const {
  Draws draws({.seed = options_.seed, .stream = uint64_t(epoch)});
  const auto uniform = [&] { return double(draws.next() >> 11) * 0x1p-53; };  // in [0, 1)
  std::vector<int64_t> indices;
  if (options_.replacement) {
    const auto last = std::lower_bound(sums_.begin(), sums_.end(), sums_.back());  // the last positive weight
    for (int64_t i = 0; i < options_.num_samples; ++i) {
      const auto found = std::upper_bound(sums_.begin(), sums_.end(), uniform() * sums_.back());
      indices.push_back(std::min(found, last) - sums_.begin());
    }
    return indices;
  }
  // Exponential arrival times, divided by the weights: their order is that of draws one after another (Efraimidis and
  // Spirakis, 2006).
  std::vector<std::pair<double, int64_t>> arrivals;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const double time = -std::log1p(-uniform());
    if (weights_[i] > 0) arrivals.emplace_back(time / weights_[i], int64_t(i));
  }
  const auto end = arrivals.begin() + options_.num_samples;
  std::partial_sort(arrivals.begin(), end, arrivals.end());
  for (auto one = arrivals.begin(); one != end; ++one) indices.push_back(one->second);
  return indices;
}

}  // namespace lockstep::data
