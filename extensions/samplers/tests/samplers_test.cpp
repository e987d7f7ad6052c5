// WeightedRandomSampler: frequencies, draws without replacement, resuming, errors.
#include "extensions/samplers/samplers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "data/loader.h"
#include "tensor/ops.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::data;

TEST_CASE("weighted draws with replacement have the frequencies of the weights") {
  const std::vector<double> weights{0, 1, 0.5, 0, 2.5, 0};
  const WeightedRandomSampler sampler(weights, {.num_samples = 40000, .seed = 3});
  const auto indices = sampler(0);
  CHECK(indices.size() == 40000);
  std::vector<double> counts(weights.size(), 0);
  for (const int64_t index : indices) ++counts.at(size_t(index));
  for (size_t i = 0; i < weights.size(); ++i) {
    const double expected = 40000 * weights[i] / 4;
    CHECK(std::abs(counts[i] - expected) <= 5 * std::sqrt(expected));
  }
  CHECK(sampler(0) == indices);
  CHECK(sampler(1) != indices);
  CHECK(WeightedRandomSampler(weights, {.num_samples = 40000, .seed = 4})(0) != indices);
}

TEST_CASE("weighted draws without replacement take from what is left") {
  const std::vector<double> weights{1, 0, 2, 3};
  int64_t first[4] = {}, second[4] = {};
  const WeightedRandomSampler sampler(weights, {.num_samples = 3, .replacement = false, .seed = 5});
  const int64_t epochs = 20000;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    auto indices = sampler(epoch);
    ++first[indices[0]], ++second[indices[1]];
    std::sort(indices.begin(), indices.end());
    CHECK(indices == std::vector<int64_t>{0, 2, 3});
  }
  for (int i = 0; i < 4; ++i) {
    double later = 0;  // the probability of i after another first one
    for (int j = 0; j < 4; ++j)
      if (j != i) later += weights[size_t(j)] / 6 * weights[size_t(i)] / (6 - weights[size_t(j)]);
    CHECK(std::abs(double(first[i]) - epochs * weights[size_t(i)] / 6) < 400);
    CHECK(std::abs(double(second[i]) - epochs * later) < 400);
  }
}

TEST_CASE("a loader of weighted draws resumes exactly") {
  struct Numbers : Dataset<Tensor> {
    int64_t size() const override { return 10; }
    Tensor get(int64_t index) const override { return full({}, double(index)); }
  } numbers;
  const std::vector<double> weights{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  for (const int64_t count : {4, 25}) {  // fewer and more than the dataset has
    const auto make = [&] {
      return DataLoader<Tensor>(
          numbers, {.batch_size = 2, .sampler = WeightedRandomSampler(weights, {.num_samples = count, .seed = 2})});
    };
    auto one = make(), other = make();
    std::vector<std::vector<double>> all, rest;
    LoaderState state;
    for (int epoch = 0; epoch < 2; ++epoch)
      for (auto& batch : one) {
        all.push_back(batch.to_vector<double>());
        if (all.size() == 2) state = one.state();
      }
    other.load_state(state);
    while (rest.size() + 2 < all.size())
      for (auto& batch : other) rest.push_back(batch.to_vector<double>());
    CHECK(rest == std::vector<std::vector<double>>(all.begin() + 2, all.end()));
  }
}

TEST_CASE("wrong weights") {
  using Weighted = WeightedRandomSampler;
  const std::vector<double> good{1, 0, 2}, none(2, 0.0);
  CHECK_ERROR(Weighted({1, -2}, {.num_samples = 1}), "expected finite weights >= 0, got -2 for index 1");
  CHECK_ERROR(Weighted({NAN}, {.num_samples = 1}), "got nan for index 0");
  CHECK_ERROR(Weighted({1, INFINITY}, {.num_samples = 1}), "got inf for index 1");
  CHECK_ERROR(Weighted({}, {.num_samples = 1}), "expected weights with a finite sum > 0, got 0 weights with sum 0");
  CHECK_ERROR(Weighted(none, {.num_samples = 1}), "got 2 weights with sum 0");
  CHECK_ERROR(Weighted({1e308, 1e308}, {.num_samples = 1}), "got 2 weights with sum inf");
  CHECK_ERROR(Weighted(good, {}), "expected num_samples >= 1, got 0");
  CHECK_ERROR(Weighted(good, {.num_samples = 3, .replacement = false}),
              "expected at most 2 samples, the number of positive weights, got 3");
}
