// Early stopping and metrics in a Trainer: when it stops, over ranks and after a resumed run.
#include "extensions/metrics/early_stopping.h"

#include <doctest/doctest.h>

#include <cmath>

#include "extensions/metrics/metrics.h"
#include "tests/messages.h"
#include "tests/models.h"
#include "tests/output.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace testing;

namespace {

/// Gives the callback these values of the metric `m`, and returns the evaluation after which it stops (0: never).
int stops_after(const metrics::EarlyStoppingOptions& o, const std::vector<double>& values) {
  const train::Callback callback = metrics::early_stopping(o);
  train::RunState run;
  for (size_t i = 0; i < values.size(); ++i) {
    run.metrics = {{"val_loss", 1}, {"m", values[i]}};
    callback.on_evaluate(run);
    if (run.control.stop) return int(i) + 1;
  }
  return 0;
}

/// Trains a linear model whose metric `m` after each step a list gives, and returns its steps; an epoch has one step.
int64_t steps_of(train::TrainOptions o, int ranks, const std::vector<double>& values) {
  int64_t steps = 0;
  o.plan = ranks == 2 ? "dp2" : "", o.parallel.ranks = ranks, o.parallel.accumulate = ranks == 2 ? 1 : 2, o.batch = 4,
  o.json = true;
  const HeldOutput nowhere;
  train::start(o, "", [&](train::TrainJob& job) {
    manual_seed(1);
    nn::Linear net({.in = 3, .out = 2});
    const Tensor x = randn({8, 3}), y = argmax(x.narrow(1, 0, 2), 1);
    const auto samples = data::share(data::TensorDataset(x, y));
    train::TrainerOptions t{
        .loss = [](const Variable& out, const Tensor& target) { return cross_entropy(out, target); },
        .data = samples,
        .evaluate = samples};
    const auto step = std::make_shared<int64_t>(0);
    t.compute_metrics = [&values, step](const train::Predictions&) {
      return std::vector<std::pair<std::string, double>>{{"m", values.at(size_t(*step - 1))}};
    };
    t.callbacks = {metrics::early_stopping({.metric = "val_m", .patience = 2}),
                   {.on_step_end = [step](train::RunState& run) { *step = run.step; }}};
    train::Trainer trainer(job, net, t);
    trainer.fit();
    if (job.team().leads()) steps = trainer.step();
  });
  return steps;
}

}  // namespace

TEST_CASE("early stopping: patience, direction, least improvement, NaN") {
  struct Row {
    metrics::EarlyStoppingOptions options;
    std::vector<double> values;
    int expected;
  };
  for (const Row& row : std::vector<Row>{{{"m"}, {3, 2, 1}, 0},
                                         {{"m"}, {3, 2, 2}, 3},  // equal values do not improve
                                         {{"m", 2}, {3, 4, 2, 3, 2}, 5},
                                         {{"-m", 2}, {.1, .2, .1, .2}, 4},
                                         {{"-m", 1}, {-3, -2, -1}, 0},
                                         {{"m", 2, .5}, {3, 2.75, 2.25, 2, 1.75}, 5},  // 2.25 is better by 0.75 than 3
                                         {{"m", 2, .5}, {3, 2.5, 2.5}, 3},
                                         {{"m", 2}, {NAN, 5, NAN, NAN}, 4},
                                         {{"m", 2}, {NAN, NAN}, 2}})
    CHECK(stops_after(row.options, row.values) == row.expected);
  CHECK_ERROR(stops_after({"val_accuracy"}, {1}),
              "[early_stopping] expected the metric val_accuracy in evaluations, got val_loss, m; choose one of them");
  CHECK_ERROR(metrics::early_stopping({.patience = 0}), "[early_stopping] expected patience >= 1, got 0");
  CHECK_ERROR(metrics::early_stopping({.min_delta = -1}), "[early_stopping] expected min_delta >= 0, got -1");
}

TEST_CASE("early stopping: the same on several ranks, and a resumed run goes on counting") {
  const std::vector<double> values{3, 2, 4, 2.5, 1, 1, 1, 1, 1};
  for (const int ranks : {0, 2}) {
    train::TrainOptions o;
    o.epochs = 8;
    CHECK(steps_of(o, ranks, values) == 4);
    const TempDir out;
    o.out = out.str(), o.steps = 3;
    CHECK(steps_of(o, ranks, values) == 3);  // one evaluation without improvement so far
    o.resume = true, o.steps = 8;
    CHECK(steps_of(o, ranks, values) == 4);
  }
}

TEST_CASE("metrics of a Trainer: the same under each plan, with reduced predictions too") {
  using metrics::share;
  std::vector<std::vector<std::pair<std::string, double>>> found;
  for (const char* plan : {"", "dp2", "pp2"})
    for (const bool reduces : {false, true}) {
      train::TrainOptions o;
      o.plan = plan, o.parallel.ranks = *plan ? 2 : 0, o.batch = 8, o.steps = 1, o.json = true;
      o.parallel.accumulate = o.plan == "dp2" ? 1 : 2;
      const HeldOutput nowhere;
      train::start(o, "", [&](train::TrainJob& job) {
        manual_seed(5);
        Classifier net;
        const Tensor x = randn({30, 6}), y = argmax(x.narrow(1, 0, 3), 1);
        const auto samples = data::share(data::TensorDataset(x, y));
        train::TrainerOptions t{
            .loss = [](const Variable& out, const Tensor& target) { return cross_entropy(out, target); },
            .data = samples,
            .evaluate = samples,
            .evaluate_batch = 7};
        if (reduces)
          t.preprocess_logits_for_metrics = [](const Variable& out, const Tensor&) { return argmax(out, 1); };
        t.compute_metrics = metrics::MetricCollection(
            {{"accuracy", share(metrics::Accuracy())},
             {"f1", share(metrics::F1Score({.classes = 3, .average = metrics::Average::macro}))},
             {"matrix", share(metrics::ConfusionMatrix({.classes = 3}))}});
        train::Trainer trainer(job, net, t);
        const auto values = trainer.evaluate();
        if (job.team().leads()) found.push_back(values);
      });
    }
  REQUIRE(found.size() == 6);
  REQUIRE(found[0].size() == 1 + 1 + 1 + 9);
  CHECK(found[0][2].first == "val_f1");
  for (const auto& other : found) CHECK(other == found[0]);
}
