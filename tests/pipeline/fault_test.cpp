// Faults in a pipeline end in an Error on every rank; its message.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "optim/optim.h"
#include "pipeline/engine.h"
#include "tensor/ops.h"
#include "tests/dist/outcomes.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace testing;
using namespace lockstep::pipeline;

namespace {

std::vector<LayerSpec> chain(int layers, int64_t width = 4) {
  std::vector<LayerSpec> all;
  for (int i = 0; i < layers; ++i) all.push_back(layer<nn::Linear>({.in = width, .out = width}));
  return all;
}

Variable mean_of(const Values& out, const std::vector<Tensor>&) { return mean(out[0]); }

std::optional<Sample> ones_of(int64_t rows, int64_t width = 4) { return Sample{{ones({rows, width})}, {}}; }

/// Checks that each of n ranks that run body is told an error with this text.
void check_all(int n, const std::string& part, const std::function<void(int rank)>& body) {
  for (const std::string& text : outcomes(n, body, 30)) CHECK_MESSAGE(contains(text, part), text);
}

}  // namespace

TEST_CASE("pipeline faults: invalid options are rejected on all ranks") {
  struct Row {
    int ranks, layers;
    EngineOptions options;
    const char* expected;
  };
  PipelineSchedule without = make_schedule({ScheduleKind::one_f_one_b, 2, 3});
  auto& list = without.ranks[0];
  list.erase(std::find(list.begin(), list.end(), StepAction{Do::receive_gradient, 1, 0}));
  // rank 1 waits for a gradient before it sends the activation that leads to it
  PipelineSchedule late = make_schedule({ScheduleKind::one_f_one_b, 3, 4});
  auto& middle = late.ranks[1];
  const auto send = std::find(middle.begin(), middle.end(), StepAction{Do::send_activation, 2, 0});
  std::rotate(send, send + 1, middle.end());
  const std::vector<Row> rows{
      {4,
       3,
       {.micro_batches = 4},
       "[split] expected at least one layer for each of 4 stages, got 3 layers; use at most 3 stages"},
      {2, 3, {.micro_batches = 4, .schedule = ScheduleKind::interleaved}, "each of 4 stages, got 3 layers"},
      {4, 8, {.stages = 3}, "stages that divide the 4 ranks, got 3"},
      {2, 8, {.stages = 4}, "stages that divide the 2 ranks, got 4"},
      {2, 8, {.micro_batches = 0}, "micro-batches, got 0"},  // other errors of schedules: schedule_test.cpp
      {2, 4, {.split = SplitBy::parse("type:Conv")}, "type:Conv matches no layer"},  // of splits: split_test.cpp
      {2, 4, {.bounds = {0, 2}}, "bounds to be 3 rising numbers from 0 to 4"},
      {2, 4, {.bounds = {0, 4, 4}}, "bounds to be 3 rising numbers"},
      {2, 4, {.checkpoint_interval = -1}, "checkpoint_interval of 0 or more, got -1"},
      {2,
       4,
       {.custom = without},
       "the schedule is wrong: rank 0, backward of micro-batch 1: its gradient was not received from stage 1"},
      {3,
       4,
       {.custom = late},
       "the schedule is wrong: deadlock: rank 0, stage 0, waits in receiving the gradient of micro-batch 2 for rank 1"},
      {2, 4, {.custom = make_schedule({ScheduleKind::gpipe, 3, 2})}, "a schedule of 2 stages, got one of 3"},
  };
  for (const Row& row : rows)
    check_all(row.ranks, row.expected, [&](int) { PipelineEngine(chain(row.layers), row.options, mean_of); });
}

TEST_CASE("pipeline faults: ranks that have different models or options") {
  check_all(2, "[pipeline]",
            [](int rank) { PipelineEngine(chain(4 + rank), {.split = SplitBy::parse("uniform")}, mean_of); });
  check_all(2, "micro_batches 2", [](int rank) { PipelineEngine(chain(4), {.micro_batches = 2 + rank}, mean_of); });
  check_all(2, "parameter 0.weight f32 (4, 4)",
            [](int rank) { PipelineEngine(chain(4, 4 + rank), {.stages = 1}, mean_of); });  // replicas of one stage
}

TEST_CASE("pipeline faults: in a step") {
  const auto good = [](int64_t) { return ones_of(2); };
  const auto too_wide = [](auto& layers) { layers[2] = layer<nn::Linear>({.in = 5, .out = 4}); };
  const auto with_function = [](const char* name, const auto& fn) {
    return [=](auto& layers) {
      layers[1] = layer(name, LayerSpec::Forward([=](nn::Module*, const Values& in) { return fn(in); }));
    };
  };
  struct Row {
    const char* expected;
    std::function<void(std::vector<LayerSpec>&)> change = {};
    std::function<std::optional<Sample>(int64_t)> data = [](int64_t) { return ones_of(2); };
    EngineOptions options = {};
  };
  const std::vector<Row> rows{
      {.expected = "the data ended before micro-batch 2 of step 0, expected 4 micro-batches",
       .data = [](int64_t m) { return m < 2 ? ones_of(2) : std::nullopt; },
       .options = {.micro_batches = 4}},
      {.expected = "[pipeline] layer 2: [linear]", .change = too_wide, .options = {.micro_batches = 4}},
      {.expected = "[pipeline] layer 2: [linear]",
       .change = too_wide,
       .options = {.micro_batches = 4, .checkpoint_interval = 2}},
      {.expected = "stage 0 gives f32 (3, 4) after 0 random calls for micro-batch 1, it gave f32 (2, 4)",
       .data = [](int64_t m) { return ones_of(m == 1 ? 3 : 2); },
       .options = {.micro_batches = 4}},
      {.expected = "at most 16 tensors between two stages, got 17",
       .change = with_function("many", [](const Values& in) { return Values(17, in[0]); }),
       .options = {.bounds = {0, 2, 4}}},
      {"layer 1 (none): expected the layer to return a tensor, got none",
       with_function("none", [](const Values&) { return Values{}; })},
      {"expected one tensor, got 2; give the layer a function",
       [](auto& layers) {
         layers[0].with([](nn::Module* m, const Values& in) { return Values{m->call(in[0]), in[0]}; });
       }},
      {.expected = "the disk is on fire",
       .data = [](int64_t) -> std::optional<Sample> { throw std::runtime_error("the disk is on fire"); }},
  };
  for (const Row& row : rows) {
    for (const int ranks : {2, 4}) {
      check_all(ranks, row.expected, [&](int) {
        std::vector<LayerSpec> layers = chain(4);
        if (row.change) row.change(layers);
        EngineOptions options = row.options;
        options.stages = 2;
        if (options.micro_batches == 4) options.micro_batches = 8 / ranks;
        options.split = SplitBy::parse("uniform");
        PipelineEngine(std::move(layers), options, mean_of).train_batch(row.data);
      });
    }
  }
  check_all(2, "expected the loss to be one floating number, got f32 (2, 4)", [&](int) {
    PipelineEngine(chain(2), {}, [](const Values& out, const std::vector<Tensor>&) {
      return out[0];
    }).train_batch(good);
  });
  check_all(2, " still has the gradient of the last step; call the optimizer's zero_grad()", [&](int) {
    PipelineEngine engine(chain(2), {}, mean_of);
    engine.train_batch(good);
    engine.train_batch(good);
  });
  CHECK_ERROR(PipelineEngine(chain(2), {}, mean_of).eval_batch([](int64_t) { return ones_of(1); }, 0),
              "1 micro-batch or more, got 0");
  CHECK_ERROR(PipelineEngine(chain(2), {}, mean_of).train_batch({}), "a function that returns micro-batches");
  CHECK_ERROR(PipelineEngine(chain(2), {}, {}), "a loss function, got none");
  CHECK_ERROR(PipelineEngine(chain(1), {}, mean_of).clip_grad_norm(-1), "max_norm >= 0, got -1");
}

TEST_CASE("pipeline faults: shapes may change when asked for, down to no rows at all") {
  check_all(2, "(no error)", [](int) {
    PipelineEngine engine(chain(4), {.micro_batches = 4, .dynamic_shapes = true},
                          [](const Values& out, const std::vector<Tensor>&) { return sum(out[0]); });
    // micro-batches of 0, 1, 2 and 3 rows
    CHECK(std::isfinite(engine.train_batch([](int64_t m) { return ones_of(m); })));
  });
}

TEST_CASE("pipeline faults: a stage that dies or throws is named by all others") {
  for (const bool dies : {true, false}) {
    const std::string text = outcome(
        3,
        [dies](int rank) {
          std::vector<LayerSpec> layers = chain(3);
          if (rank == 1) {
            layers[1].with([dies, calls = 0](nn::Module* m, const Values& in) mutable {
              if (++calls == 3) {
                if (dies) raise(SIGKILL);
                fail("this layer breaks");
              }
              return Values{m->call(in[0])};
            });
          }
          PipelineEngine engine(std::move(layers), {.micro_batches = 8}, mean_of);
          engine.train_batch([](int64_t) { return ones_of(2); });
        },
        {.kind = dist::SpawnOptions::Kind::processes, .timeout = dist::Seconds(30), .heartbeat = dist::Seconds(0.5)});
    CHECK_MESSAGE(contains(text, "rank 1"), text);
    const bool found = dies ? contains(text, "9") || contains(text, "died")
                            // either its parent or a peer may report it first
                            : contains(text, "[pipeline] layer 1: this layer breaks");
    CHECK_MESSAGE(found, text);
  }
}

TEST_CASE("pipeline faults: stages that compute for long, with receives posted ahead, are not taken for a deadlock") {
  // While rank 0 computes, its posted receive of a gradient waits for rank 1, and vice versa.
  dist::spawn(2,
              [](int rank) {
                std::vector<LayerSpec> layers = chain(2);
                layers[size_t(rank)].with([](nn::Module* m, const Values& in) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(900));
                  return Values{m->call(in[0])};
                });
                PipelineEngine engine(std::move(layers), {.micro_batches = 3}, mean_of);
                CHECK(std::isfinite(engine.train_batch([](int64_t) { return ones_of(2); })));
              },
              {.timeout = dist::Seconds(60), .heartbeat = dist::Seconds(0.2)});
}
