// Metrics against the values of golden/scikit_learn.json, which tests/interop/metrics_golden.py made by scikit-learn.
#include <doctest/doctest.h>

#include <cmath>

#include "data/json.h"
#include "extensions/metrics/metrics.h"
#include "tests/golden_folder.h"

using namespace lockstep;
using namespace lockstep::metrics;
using data::Json;

namespace {

std::vector<double> golden_numbers(const Json& list) {
  std::vector<double> numbers;
  for (const Json& one : list.as_array()) numbers.push_back(one.as_number());
  return numbers;
}

/// A row's metric, with its options.
std::shared_ptr<Metric> metric_of(const Json& row) {
  const std::string& metric = row.at("metric").as_string();
  const Json& o = row.at("options");
  const auto number = [&](const char* key, double otherwise) {
    return o.find(key) ? o.at(key).as_number() : otherwise;
  };
  /// The place of a text among these; 0 without the key.
  const auto choice = [&](const char* key, const std::vector<std::string>& names) {
    const auto at = o.find(key) ? std::find(names.begin(), names.end(), o.at(key).as_string()) : names.begin();
    REQUIRE(at != names.end());
    return int(at - names.begin());
  };
  const std::optional<double> threshold = o.find("threshold") ? std::optional(number("threshold", 0)) : std::nullopt;
  const int64_t classes = int64_t(number("classes", 2));
  const auto average = Average(choice("average", {"binary", "micro", "macro", "weighted", "none"}));
  const ClassScoreOptions scores{
      .classes = classes, .average = average, .zero_division = number("zero_division", 0), .threshold = threshold};
  if (metric == "Accuracy") return share(Accuracy({.threshold = threshold}));
  if (metric == "TopKAccuracy") return share(TopKAccuracy({.k = int64_t(number("k", 0))}));
  if (metric == "ConfusionMatrix")
    return share(
        ConfusionMatrix({.classes = classes,
                         .normalize = Normalize(choice("normalize", {"none", "targets", "predictions", "all"})),
                         .threshold = threshold}));
  if (metric == "Precision") return share(Precision(scores));
  if (metric == "Recall") return share(Recall(scores));
  if (metric == "F1Score") return share(F1Score(scores));
  if (metric == "FBetaScore") return share(FBetaScore(number("beta", 0), scores));
  if (metric == "AUROC")
    return share(AUROC({.classes = classes, .average = o.find("average") ? average : Average::macro}));
  if (metric == "MeanSquaredError") return share(MeanSquaredError(o.find("root") != nullptr));
  if (metric == "MeanAbsoluteError") return share(MeanAbsoluteError());
  REQUIRE(metric == "Perplexity");
  return share(Perplexity());
}

}  // namespace

TEST_CASE("metrics: the values of scikit-learn") {
  const Json golden = data::read_json(std::string(golden_folder()) + "/scikit_learn.json", data::python_json);
  int rows = 0;
  for (const Json& set : golden.at("sets").as_array()) {
    Shape shape;
    for (const double size : golden_numbers(set.at("shape"))) shape.push_back(int64_t(size));
    const std::vector<double> numbers = golden_numbers(set.at("targets"));
    const Tensor predictions = Tensor::from(golden_numbers(set.at("predictions")), shape),
                 targets = Tensor::from(numbers, {int64_t(numbers.size())});
    for (const Json& row : set.at("rows").as_array()) {
      const std::string what = set.at("name").as_string() + ": " + row.dump();
      CAPTURE(what);
      const auto metric = metric_of(row);
      metric->update(predictions, targets);
      const std::vector<double> found = metric->compute().to_vector<double>(),
                                expected = golden_numbers(row.at("value"));
      REQUIRE(found.size() == expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        CAPTURE(i);
        if (std::isnan(expected[i])) CHECK(std::isnan(found[i]));
        else CHECK(std::abs(found[i] - expected[i]) <= 1e-12 * std::abs(expected[i]));
      }
      ++rows;
    }
  }
  CHECK(rows > 400);
}
