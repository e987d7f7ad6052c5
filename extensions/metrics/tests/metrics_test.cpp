// Metrics against values of scikit-learn (by its formulas, written out) in all divisions into batches and ranks.
#include "extensions/metrics/metrics.h"

#include <doctest/doctest.h>

#include <cmath>

#include "dist/process_group.h"
#include "tensor/ops.h"
#include "tests/messages.h"
#include "tests/ranks.h"

using namespace lockstep;
using namespace lockstep::metrics;
using namespace testing;

namespace {

using Numbers = std::vector<double>;

Tensor classes_of(const std::vector<int64_t>& values) { return Tensor::from(values, {int64_t(values.size())}); }
Tensor scores_of(const std::vector<double>& values, const Shape& shape) { return Tensor::from(values, shape).to(f32); }

/// Compares numbers; NaN equals NaN.
void check_numbers(const Tensor& found, const Numbers& expected) {
  const Numbers values = found.to_vector<double>();
  REQUIRE(values.size() == expected.size());
  for (size_t i = 0; i < values.size(); ++i)
    if (std::isnan(expected[i])) CHECK(std::isnan(values[i]));
    else CHECK(values[i] == doctest::Approx(expected[i]).epsilon(1e-12));
}

/// A batch of one metric after another, and its value.
Tensor value_of(Metric&& metric, const Tensor& predictions, const Tensor& targets) {
  metric.update(predictions, targets);
  return metric.compute();
}

const Tensor& truth() {  // class 3 occurs nowhere, class 2 only as a prediction
  static const Tensor tensor = classes_of({0, 0, 0, 1, 1, 1, 1, 0});
  return tensor;
}
const Tensor& guess() {
  static const Tensor tensor = classes_of({0, 0, 1, 1, 1, 0, 2, 2});
  return tensor;
}

}  // namespace

TEST_CASE("metrics: precision, recall and F scores, with classes that are absent") {
  // Hits 2, 2, 0; predictions 3, 3, 2; targets 4, 4, 0.
  using Row = std::tuple<Average, Numbers, Numbers, Numbers>;
  const double third = 2. / 3, f = 4. / 7;
  for (const auto& [average, precision, recall, f1] :
       std::vector<Row>{{Average::none, {third, third, 0, 0}, {.5, .5, 0, 0}, {f, f, 0, 0}},
                        {Average::micro, {.5}, {.5}, {.5}},
                        {Average::macro, {2 * third / 3}, {1. / 3}, {2 * f / 3}},  // of the classes 0, 1 and 2
                        {Average::weighted, {third}, {.5}, {f}}}) {
    const ClassScoreOptions o{.classes = 4, .average = average};
    check_numbers(value_of(Precision(o), guess(), truth()), precision);
    check_numbers(value_of(Recall(o), guess(), truth()), recall);
    check_numbers(value_of(F1Score(o), guess(), truth()), f1);
    check_numbers(value_of(FBetaScore(0, o), guess(), truth()), precision);
  }
  // beta 2: 5 hits / (4 targets + predictions)
  check_numbers(value_of(FBetaScore(2, {.classes = 4, .average = Average::none}), guess(), truth()),
                {10. / 19, 10. / 19, 0, 0});
  // 0 / 0: recall of class 2, everything of class 3. A NaN is left out of means.
  check_numbers(value_of(Recall({.classes = 4, .average = Average::none, .zero_division = 1}), guess(), truth()),
                {.5, .5, 1, 1});
  check_numbers(value_of(Recall({.classes = 4, .average = Average::macro, .zero_division = NAN}), guess(), truth()),
                {.5});
  check_numbers(value_of(Precision({.classes = 4, .average = Average::none, .zero_division = NAN}), guess(), truth()),
                {third, third, 0, NAN});
  // Class 1 of two; targets of -100 do not count.
  const Tensor binary = classes_of({1, 0, 1, 1, 0, -100}), predicted = classes_of({1, 1, 0, 1, 0, 1});
  check_numbers(value_of(Precision(), predicted, binary), {third});
  check_numbers(value_of(Recall(), predicted, binary), {third});
  check_numbers(value_of(F1Score(), predicted, binary), {third});
  check_numbers(value_of(F1Score({.zero_division = 1}), classes_of({0, 0}), classes_of({0, 0})), {1});
  check_numbers(value_of(F1Score(), classes_of({0, 0}), classes_of({0, 0})), {0});
  const Tensor logits = scores_of({.5, .1, 0, 3, -2, 9}, {6});  // a score that equals the threshold is class 0
  check_numbers(value_of(Precision({.threshold = 0.}), logits, binary), {2. / 3});
  check_numbers(value_of(Recall({.threshold = 0.}), logits, binary), {2. / 3});
}

TEST_CASE("metrics: accuracy of class numbers, scores and thresholds; top k; ties") {
  check_numbers(value_of(Accuracy(), guess(), truth()), {.5});
  check_numbers(value_of(Accuracy({.ignore_index = 0}), guess(), truth()), {.5});
  check_numbers(value_of(Accuracy({.threshold = .5}), scores_of({.2, .5, .9, .6}, {4}), classes_of({0, 1, 1, 0})),
                {.5});
  const Tensor ties = scores_of({1, 1, 0, /**/ 0, 2, 2, /**/ 3, 3, 3, /**/ 0, 1, 5}, {4, 3});
  const Tensor targets = classes_of({0, 2, 1, 0});
  check_numbers(value_of(Accuracy(), ties, targets), {.25});  // the first of equal scores, as in argmax
  // scikit-learn sorts stably and reads from the end: classes 1 0 2, then 2 1 0, 2 1 0, 2 1 0
  check_numbers(value_of(TopKAccuracy({.k = 1}), ties, targets), {.25});
  check_numbers(value_of(TopKAccuracy({.k = 2}), ties, targets), {.75});
  check_numbers(value_of(TopKAccuracy({.k = 3}), ties, targets), {1});
  check_numbers(value_of(TopKAccuracy({.k = 1}), scores_of({NAN, 0, 1, NAN}, {2, 2}), classes_of({0, 0})), {.5});
  // scores (N, C, T) as cross_entropy() takes them, and (N, T, C)
  const Tensor sequence = scores_of({9, 0, 0, 9, /**/ 1, 1, 0, 2}, {2, 2, 2}),
               labels = Tensor::from<int64_t>({0, 1, -100, 1}, {2, 2});
  check_numbers(value_of(Accuracy(), sequence, labels), {1});
  check_numbers(value_of(Accuracy({.dim = -1}), sequence.transpose(1, 2), labels), {1});
  check_numbers(value_of(TopKAccuracy({.k = 1, .dim = -1}), sequence.transpose(1, 2), labels), {1});
  check_numbers(value_of(Accuracy(), guess().to(f32), truth().to(i32)), {.5});  // dtypes of class numbers
  check_numbers(value_of(Accuracy(), classes_of({1, 0}).to(boolean), scores_of({1, 1}, {2})), {.5});
}

TEST_CASE("metrics: the confusion matrix") {
  const Tensor counts = value_of(ConfusionMatrix({.classes = 4}), guess(), truth());
  CHECK(counts.dtype() == i64);
  CHECK(counts.shape() == Shape({4, 4}));
  check_numbers(counts, {2, 1, 1, 0, /**/ 1, 2, 1, 0, /**/ 0, 0, 0, 0, /**/ 0, 0, 0, 0});
  const Tensor binary = classes_of({0, 1, 1, 1}), predicted = classes_of({0, 0, 1, 1});
  const double third = 1. / 3;
  using Row = std::pair<Normalize, Numbers>;
  for (const auto& [normalize, expected] : std::vector<Row>{{Normalize::none, {1, 0, 1, 2}},
                                                            {Normalize::targets, {1, 0, third, 2 * third}},
                                                            {Normalize::predictions, {.5, 0, .5, 1}},
                                                            {Normalize::all, {.25, 0, .25, .5}}})
    check_numbers(value_of(ConfusionMatrix({.normalize = normalize}), predicted, binary), expected);
  check_numbers(ConfusionMatrix({.normalize = Normalize::targets}).compute(), {0, 0, 0, 0});
}

TEST_CASE("metrics: AUROC counts pairs, equal scores half") {
  const Tensor targets = classes_of({0, 0, 1, 1});
  using Row = std::pair<Numbers, double>;
  for (const auto& [scores, area] : std::vector<Row>{{{.1, .4, .35, .8}, .75},  // scikit-learn's documented example
                                                     {{1, 1, 1, 1}, .5},
                                                     {{0, 1, 1, 2}, .875},
                                                     {{3, 2, 1, 0}, 0},
                                                     {{0, NAN, 1, 2}, NAN}})
    check_numbers(value_of(AUROC(), scores_of(scores, {4}), targets), {area});
  check_numbers(value_of(AUROC(), scores_of({1, 2}, {2}), classes_of({1, 1})), {NAN});
  // Scores of both classes: the second column counts.
  check_numbers(value_of(AUROC(), scores_of({.9, .1, .6, .4, .65, .35, .2, .8}, {4, 2}), targets), {.75});
  // One against the rest: 3 of 4 pairs, 2 of 3, 3 of 3, and no sample of class 3.
  const Tensor of_each =
      scores_of({.5, .2, .3, 0, /**/ .2, .5, .1, .2, /**/ .3, .3, .3, .1, /**/ .1, .1, .8, 0}, {4, 4});
  const Tensor classes = classes_of({0, 0, 1, 2});
  const Numbers areas{.75, 2. / 3, 1, NAN};
  check_numbers(value_of(AUROC({.classes = 4, .average = Average::none}), of_each, classes), areas);
  check_numbers(value_of(AUROC({.classes = 4}), of_each, classes), {(.75 + 2. / 3 + 1) / 3});
  check_numbers(value_of(AUROC({.classes = 4, .average = Average::weighted}), of_each, classes),
                {(2 * .75 + 2. / 3 + 1) / 4});
}

TEST_CASE("metrics: errors and perplexity") {
  const Tensor targets = scores_of({3, -.5, 2, 7}, {4}), predictions = scores_of({2.5, 0, 2, 8}, {4});
  check_numbers(value_of(MeanSquaredError(), predictions, targets), {.375});  // scikit-learn's documented examples
  check_numbers(value_of(MeanSquaredError(true), predictions, targets), {std::sqrt(.375)});
  check_numbers(value_of(MeanAbsoluteError(), predictions, targets), {.5});
  check_numbers(value_of(MeanSquaredError(), predictions.to(f16), classes_of({2, 0, 2, 8})), {.0625});
  const Tensor labels = classes_of({0, 1, -100});
  const Tensor logs = Tensor::from<double>({std::log(.5), std::log(.125), 9}, {3});
  check_numbers(value_of(Perplexity(), logs, labels), {4});
  const Tensor logits = Tensor::from<double>({0, 0, /**/ std::log(7), 0, /**/ 5, 6}, {3, 2});  // odds 1:1 and 7:1
  check_numbers(value_of(Perplexity(), logits, labels), {4});
  const Tensor sequence = logits.reshape({1, 3, 2});
  check_numbers(value_of(Perplexity({.dim = -1}), sequence, labels.reshape({1, 3})), {4});
  check_numbers(value_of(Perplexity(), sequence.transpose(1, 2), labels.reshape({1, 3})), {4});
}

TEST_CASE("metrics: batches and ranks do not matter, not even a rank without any") {
  manual_seed(3);
  const int64_t n = 24;
  const Tensor scores = randn({n, 3}, {.device = cpu}),
               targets = argmax(scores + randn({n, 3}, {.device = cpu}), 1).to(cpu);
  const Tensor rounded = floor(scores * 2.f);  // with ties
  const auto all = [&] {
    return MetricCollection({{"accuracy", share(Accuracy())},
                             {"top", share(TopKAccuracy({.k = 2}))},
                             {"f1", share(F1Score({.classes = 3, .average = Average::weighted}))},
                             {"of", share(Recall({.classes = 3, .average = Average::none}))},
                             {"area", share(AUROC({.classes = 3}))},
                             {"matrix", share(ConfusionMatrix({.classes = 3}))}});
  };
  const MetricCollection at_once = all();
  at_once.update(rounded, targets);
  const MetricCollection::Values expected = at_once.compute();
  REQUIRE(expected.size() == 4 + 3 + 9);
  CHECK(expected[4].first == "of_1");
  CHECK(expected.back().first == "matrix_2_2");
  CHECK(at_once(train::Predictions{.predictions = rounded, .label_ids = targets}) == expected);
  // The rows where each rank's part begins, and the end. Of five ranks, rank 1 has no batch.
  for (const std::vector<int64_t>& parts :
       std::vector<std::vector<int64_t>>{{0, n}, {0, 5, n}, {0, 5, 11, n}, {0, 5, 5, 10, 16, n}})
    for (const auto& found : on_ranks<MetricCollection::Values>(int(parts.size()) - 1, [&](int rank) {
           const MetricCollection mine = all();
           mine.update(rounded, targets);
           mine.reset();
           const int64_t end = parts[size_t(rank) + 1];
           for (int64_t i = parts[size_t(rank)]; i < end; i += 2) {
             const int64_t rows = std::min<int64_t>(2, end - i);
             mine.update(rounded.narrow(0, i, rows), targets.narrow(0, i, rows));
           }
           return mine.compute(dist::world());
         }))
      CHECK(found == expected);
}

TEST_CASE("metrics: bad calls are refused, and leave a metric as it was") {
  const Tensor four = classes_of({0, 1, 1, 0});
  Accuracy accuracy;
  accuracy.update(four, four);
  const auto rejects = [&](Metric&& metric, const Tensor& predictions, const Tensor& targets, const std::string& text) {
    CHECK_ERROR(metric.update(predictions, targets), "[" + metric.name() + "] expected " + text);
  };
  CHECK_ERROR(accuracy.update(classes_of({0, 1, 1, -1}), four), "[Accuracy] expected predictions of 0 or more");
  CHECK(accuracy.compute().item() == 1);
  rejects(Accuracy(), classes_of({0, 1}), four, "scores with a class dim more than the targets (4), got (2)");
  rejects(Accuracy(), scores_of({.5, .1, .9, .2}, {4}), four,
          "predictions that are class numbers, got 0.5; for scores of class 1 set a threshold");
  rejects(Accuracy({.threshold = 0.}), zeros({4, 2}), four,
          "scores of the targets' shape (4), as there is a threshold");
  rejects(Accuracy(), zeros({4, 1}), four,
          "2 classes or more in dim 1 of the scores, got 1; for the scores of one class");
  rejects(Accuracy(), zeros({2, 4}), four, "targets (2) for scores (2, 4) with the classes in dim 1, got (4)");
  rejects(Accuracy(), zeros({4, 2}), classes_of({0, 1, 2, 0}), "targets in 0 .. 1 (or the ignore_index -100), got 2");
  rejects(Accuracy(), four, scores_of({.5, 0, 0, 0}, {4}), "targets that are class numbers, got 0.5");
  rejects(TopKAccuracy(), four, four, "scores in a floating dtype, got i64");
  rejects(F1Score({.classes = 3, .average = Average::macro}), zeros({4, 2}), four,
          "3 classes in dim 1 of the scores, got 2");
  rejects(ConfusionMatrix(), classes_of({0, 2, 0, 0}), four, "predictions in 0 .. 1");
  rejects(AUROC({.classes = 3}), zeros({4}), four, "scores with a class dim more than the targets (4), got (4)");
  rejects(MeanSquaredError(), zeros({4, 1}), zeros({4}), "predictions of the targets' shape (4), got (4, 1)");
  rejects(Perplexity(), four, four, "logits or log-probabilities, got i64");
  CHECK_ERROR(Accuracy().compute(),
              "[Accuracy] expected a target that counts before compute(), got none; call update()");
  CHECK_ERROR(value_of(F1Score(), classes_of({0}), classes_of({-100})), "[F1Score] expected a target that counts");
  CHECK_ERROR(AUROC().compute(), "[AUROC] expected a target that counts");
  CHECK_ERROR(TopKAccuracy({.k = 0}), "[TopKAccuracy] expected k >= 1, got 0");
  CHECK_ERROR(F1Score({.classes = 3}), "[F1Score] expected 2 classes with Average::binary, got 3");
  CHECK_ERROR(Recall({.classes = -1}), "[Recall] expected 2 classes or more, got -1");
  CHECK_ERROR(FBetaScore(-1), "[FBetaScore] expected beta >= 0, got -1");
  CHECK_ERROR(ConfusionMatrix({.classes = 3, .threshold = 0.}), "[ConfusionMatrix] expected 2 classes, as there is");
  CHECK_ERROR(AUROC({.average = Average::micro}), "[AUROC] expected macro, weighted or none");
  CHECK_ERROR(MetricCollection({{"a", share(Accuracy())}, {"a", share(AUROC())}}), "expected different names, got a");
}
