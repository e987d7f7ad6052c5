// Schedules that few programs need: their checks, their names in configurations, lists of them, and metrics of ranks.
#include <doctest/doctest.h>

#include "engine/engine.h"
#include "extensions/optimizers/fused_rules.h"
#include "extensions/optimizers/schedules.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "parallel/ddp.h"
#include "tests/messages.h"
#include "tests/models.h"
#include "tests/ranks.h"

using namespace lockstep;
using namespace lockstep::optim;
using namespace testing;

TEST_CASE("schedules set rates at once, go on from a state, and reject invalid options") {
  Variable w(ones({1}), true);
  SGD a({w}, {.lr = 1, .momentum = 0.9}), b({w}, {.lr = 1, .momentum = 0.9});
  CosineAnnealingLR first(a, {.T_max = 10}), second(b, {.T_max = 10});
  for (int i = 0; i < 4; ++i) first.step();
  second.load_state(first.state());
  CHECK(a.lr() == b.lr());
  LambdaLR lambda(a, [](int64_t t) { return 1 / double(t + 1); });
  ReduceLROnPlateau plateau(b, {.factor = 0.5, .patience = 0});
  CHECK_ERROR(plateau.step(), "needs the metric");
  CHECK_ERROR(StepLR(a, {.step_size = 0}), "expected step_size > 0");
  CHECK_ERROR(ReduceLROnPlateau(a, {.mode = "mni"}), "expected mode 'min' or 'max'");
  Adagrad c({w}, {});
  CHECK_ERROR(OneCycle(c, {.cycle_min_lr = 0.1, .cycle_max_lr = 1}), "cycle_momentum");
  CHECK_ERROR(first.load_state({}), "expected 'step' in the saved state");
}

TEST_CASE("schedules of schedules go on from a state, with momentum") {
  const auto make = [](Optimizer& o) {
    return SequentialLR(o,
                        {scheduled<LinearLR>({.start_factor = 0.5, .total_iters = 2}),
                         scheduled<CyclicLR>({.base_lr = 0.1, .max_lr = 0.5, .step_size_up = 4})},
                        {2});
  };
  Variable w(ones({1}), true);
  SGD a({w}, {.lr = 1, .momentum = 0.9}), b({w}, {.lr = 2, .momentum = 0.9});
  auto first = make(a), second = make(b);
  CHECK(a.lr() == 0.5);
  for (int i = 0; i < 4; ++i) first.step();
  second.load_state(first.state());
  CHECK(a.lr() == doctest::Approx(0.3));
  CHECK(a.get(0, "momentum") == doctest::Approx(0.85));
  CHECK((b.lr() == a.lr() && b.get(0, "momentum") == a.get(0, "momentum")));
  second.enter(1);
  CHECK(b.lr() == 0.75);  // computed from the base rate in the saved state
}

TEST_CASE("lists of schedules refuse nonsense") {
  Variable w(ones({1}), true);
  SGD sgd({w}, {.lr = 1});
  const auto step = scheduled<StepLR>({.step_size = 1});
  CHECK_ERROR(ChainedScheduler(sgd, {}), "at least one schedule");
  CHECK_ERROR(ChainedScheduler(sgd, {scheduled<ReduceLROnPlateau>({})}), "which follows a metric; use it alone");
  CHECK_ERROR(ChainedScheduler(sgd, {scheduled<CyclicLR>({.base_lr = 0.1, .max_lr = 1})}), "use SequentialLR");
  CHECK_ERROR(SequentialLR(sgd, {step, step}, {}), "expected 1 milestones between 2 schedules, got 0");
  CHECK_ERROR(SequentialLR(sgd, {step, step, step}, {5, 5}), "increasing milestones >= 1, got 5 as number 2");
  CHECK_ERROR(CyclicLR(sgd, {.base_lr = 0.1, .max_lr = 1, .mode = "square"}), "got 'square'");
  CHECK_ERROR(SWALR(sgd, {.swa_lr = 1, .anneal_strategy = "log"}), "expected anneal_strategy 'cos' or 'linear'");
}

TEST_CASE("DDP: ReduceLROnPlateau uses the mean metric of the ranks") {
  const auto rates = on_ranks<double>(2, [](int rank) {
    nn::Linear net = linear(3, 1);
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    optim::ReduceLROnPlateau plateau(sgd, {.factor = 0.1, .patience = 0});
    parallel::DistributedDataParallel ddp(net);
    double metric = 1;
    for (int i = 0; i < 3; ++i) {
      plateau.step(metric);  // 1, 1; 0.5, 1.5; 0.25, 2.25
      metric *= rank == 0 ? 0.5 : 1.5;
    }
    return plateau.lr();
  });
  CHECK(rates[0] == doctest::Approx(0.001));
  CHECK(rates[0] == rates[1]);
}

TEST_CASE("config: rare schedules by name, with the options of the file") {
  struct Row {
    const char *type, *params;
    int64_t steps;
    double lr;
  };
  const Row rows[] = {
      {"OneCycle", R"({"cycle_min_lr": 0.1, "cycle_max_lr": 0.3, "cycle_first_step_size": 4})", 2, 0.2},
      {"LRRangeTest", R"({"lr_range_test_min_lr": 0.1, "lr_range_test_step_size": 10, "lr_range_test_step_rate": 1})",
       10, 0.2},
      {"StepLR", R"({"step_size": 2})", 2, 0.1},
      {"MultiStepLR", R"({"milestones": [1, 3], "gamma": 0.5})", 3, 0.25},
      {"ExponentialLR", R"({"gamma": 0.5})", 3, 0.125},
      {"CosineAnnealingLR", R"({"T_max": 4})", 2, 0.5},
      {"CosineAnnealingWarmRestarts", R"({"T_0": 4})", 2, 0.5},
      {"LinearLR", R"({"start_factor": 0.5, "total_iters": 4})", 2, 0.75},
      {"ConstantLR", R"({"factor": 0.5, "total_iters": 4})", 2, 0.5},
      {"PolynomialLR", R"({"total_iters": 4})", 1, 0.75},
      {"OneCycleLR", R"({"max_lr": 2, "total_steps": 100})", 29, 2},
      {"CyclicLR", R"({"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 4})", 2, 0.3},
      {"SWALR", R"({"swa_lr": 0.5, "anneal_epochs": 4})", 2, 0.75},
      {"ChainedScheduler",
       R"({"schedulers": [{"type": "ExponentialLR", "params": {"gamma": 0.5}}, {"type": "ConstantLR"}]})", 2, 1. / 12},
      {"SequentialLR", R"({"schedulers": [{"type": "LinearLR"}, {"type": "StepLR", "params": {"step_size": 1}}],
        "milestones": [5]})",
       6, 0.1},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.type));
    const auto c =
        engine::config_from_json(str(R"({"scheduler": {"type": ")", row.type, R"(", "params": )", row.params, "}}"));
    AdamW optimizer({Variable(ones({1}), true)}, {.lr = 1});
    const auto schedule = make_schedule(c, optimizer);
    for (int64_t t = 0; t < row.steps; ++t) schedule->step();
    CHECK(schedule->lr() == doctest::Approx(row.lr).epsilon(1e-6).scale(0));
  }
  CHECK_ERROR(engine::config_from_json(R"({"scheduler": {"type": "LinearLR", "params": {"start_factor": 2}}})"),
              "scheduler.params: expected start_factor in (0, 1], got 2");
}

TEST_CASE("engine: a plateau by name gets its metric from step(metric)") {
  on_ranks(1, [](int) {
    nn::Linear net({.in = 2, .out = 1});
    SGD sgd(net.parameters(), {.lr = 0.5});
    engine::Engine<nn::Linear> e(net, engine::InitializeArgs{.optimizer = &sgd,
                                                             .config = R"({"train_micro_batch_size_per_gpu": 1,
          "scheduler": {"type": "ReduceLROnPlateau", "params": {"patience": 0, "factor": 0.5}}})",
                                                             .log = [](const std::string&) {}});
    CHECK(e.wants_metric());
    const auto backward = [&] { e.backward(sum(e(Variable(ones({1, 2}))))); };
    backward();
    CHECK_ERROR(e.step(), "expected step(metric) after the step's last micro-batch");
    e.step(1.0);
    CHECK(e.get_lr()[0] == 0.5);
    backward();
    e.step(2.0);
    CHECK(e.get_lr()[0] == 0.25);
  });
}
