// The bubble measured by an engine: with layers that sleep for a fixed time it matches the formula, for any number of
// cores.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "pipeline/engine.h"
#include "pipeline/simulate.h"
#include "tensor/ops.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace testing;
using namespace lockstep::pipeline;

namespace {

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// Layers whose forward takes `unit` seconds and whose backward takes twice that.
std::vector<LayerSpec> sleepers(int layers, double unit, bool tied = false) {
  std::vector<LayerSpec> all;
  for (int i = 0; i < layers; ++i) {
    all.push_back(layer<nn::Linear>({.in = 2, .out = 2}).with([unit](nn::Module* m, const Values& in) {
      sleep_for(unit);
      Variable out = m->call(in.at(0));
      if (out.requires_grad())
        out.on_grad([unit](const Tensor&) {
          sleep_for(2 * unit);
          return Tensor();
        });
      return Values{out};
    }));
  }
  if (tied) all.front().tie("ends"), all.back().tie("ends");
  return all;
}

Variable any_loss(const Values& out, const std::vector<Tensor>&) { return mean(out[0]); }
std::optional<Sample> any_sample(int64_t) { return Sample{{ones({1, 2})}, {}}; }

}  // namespace

TEST_CASE("pipeline bubble: the measured bubble matches the formula") {
  struct Row {
    ScheduleKind kind;
    int stages, micro_batches, replicas;
    bool tied = false;
  };
  for (const Row& row : std::vector<Row>{{ScheduleKind::one_f_one_b, 2, 4, 1},
                                         {ScheduleKind::one_f_one_b, 4, 8, 1},
                                         {ScheduleKind::gpipe, 3, 6, 1},
                                         {ScheduleKind::one_f_one_b, 2, 2, 2},
                                         {ScheduleKind::zb_h1, 2, 4, 1},
                                         // tied: the exchange of the tied gradient must not block other work
                                         {ScheduleKind::zb_h1, 2, 4, 1, true}}) {
    const double expected = double(row.stages - 1) / (row.micro_batches + row.stages - 1);
    // Other programs may occupy a core for a while, so one undisturbed step suffices; disturbances matter less in
    // longer steps.
    double nearest = 1;
    for (const double unit : {0.008, 0.03, 0.1}) {
      if (nearest < 0.1) break;
      on_ranks(row.stages * row.replicas, [&](int rank) {
        PipelineEngine engine(sleepers(row.stages, unit, row.tied),
                              {.stages = row.stages, .micro_batches = row.micro_batches, .schedule = row.kind},
                              any_loss);
        for (int step = 0; step < 10; ++step) {
          engine.train_batch(any_sample);
          for (const Variable& p : engine.module().parameters()) Variable(p).clear_grad();
          CHECK(engine.times().size() == size_t(row.stages * row.replicas));
          CHECK(engine.bubble() > 0);
          const double off = std::abs(engine.bubble() / expected - 1);
          if (rank == 0) nearest = std::min(nearest, off);
          if (off < 0.1) break;  // the same numbers on all ranks
        }
      });
    }
    CHECK_MESSAGE(nearest < 0.1, str(name_of(row.kind), row.tied ? ", tied" : "", " of ", row.stages)
                                     << " stages: " << nearest);
  }
}

TEST_CASE("pipeline bubble: a rank that has more to do is busy, the others wait for it") {
  on_ranks(2, [](int) {
    auto layers = sleepers(2, 0.002);
    layers[1] = sleepers(1, 0.01)[0];
    PipelineEngine engine(std::move(layers), {.micro_batches = 4}, any_loss);
    engine.train_batch(any_sample);
    const auto& times = engine.times();
    CHECK(times[1].busy > 0.12);
    CHECK(times[0].idle > times[1].idle);
    CHECK(std::abs(times[0].busy + times[0].idle - times[1].busy - times[1].idle) < 1e-9);
  });
  PipelineEngine single(sleepers(1, 0.001), {.micro_batches = 2}, any_loss);
  CHECK(single.bubble() == 0);
  single.train_batch(any_sample);
  CHECK(single.bubble() < 0.05);
}
