// Pipeline stages on devices of their own: NCCL carries their messages, and the results are bit-identical to those of
// one device.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "tests/cuda/nccl_util.h"
#include "tests/cudasim/fake.h"
#include "tests/pipeline/custom_schedule.h"
#include "tests/pipeline/language.h"

using namespace lockstep;
using namespace testing;
using namespace lockstep::pipeline;

namespace {

/// The layers, created on a device.
std::vector<LayerSpec> placed(std::vector<LayerSpec> layers, Device device) {
  for (LayerSpec& layer : layers) {
    if (!layer.make) continue;
    layer.make = [make = layer.make, device] {
      auto made = make();
      made->to(device);
      return made;
    };
  }
  return layers;
}

Sample placed(Sample sample, Device device) {
  for (auto* tensors : {&sample.inputs, &sample.targets})
    for (Tensor& t : *tensors) t = t.to(device);
  return sample;
}

struct StagePlan {
  int ranks = 1;
  EngineOptions options;
  const char* backend = "nccl";
  std::function<Device(int rank)> device = device_of;
  int steps = testing::steps;
};

/// Parameters and losses of all ranks; checks that values held by several ranks are equal.
Tensors train_stages(const StagePlan& plan) {
  const auto all = on_ranks<Tensors>(
      plan.ranks,
      [&](int rank) {
        const Device device = plan.device(rank);
        manual_seed(5);
        PipelineEngine engine(placed(model(), device), plan.options, loss_of_tokens);
        Optimizer optimizer(engine.module());
        std::vector<double> losses;
        for (int step = 0; step < plan.steps; ++step) {
          losses.push_back(engine.train_batch([&](int64_t m) { return placed(*sample_of(step, m), device); }));
          optimizer.step();
          const auto evaluated =
              engine.eval_batch([&](int64_t m) { return placed(*sample_of(50, m, 1 + m % 3), device); }, 5);
          losses.insert(losses.end(), evaluated.begin(), evaluated.begin() + 5);
          for (const RankTime& t : engine.times()) require(t.busy > 0 && t.idle >= 0, "seconds of ranks");
        }
        Tensors mine = copy_parameters(engine.module());
        for (auto& [name, tensor] : mine) tensor = tensor.to(cpu);
        mine["loss"] = Tensor::from(losses, {int64_t(losses.size())});
        return mine;
      },
      {.backend = plan.backend, .timeout = dist::Seconds(120)});
  return merged(all);
}

std::string name_of_plan(const StagePlan& plan) {
  return str(plan.ranks, " ranks, ", name_of(plan.options.schedule), ", chunks ", plan.options.chunks, ", ",
             plan.options.dynamic_shapes ? "dynamic shapes, " : "", plan.backend);
}

/// Linear layers of `wide` numbers on a device.
std::vector<LayerSpec> linears(size_t count, int64_t wide, Device device) {
  const nn::Linear::Options options{.in = wide, .out = wide};
  return placed(std::vector<LayerSpec>(count, layer<nn::Linear>(options)), device);
}
/// Trains a step on x in every micro-batch.
double train_on(PipelineEngine& engine, const Tensor& x) {
  return engine.train_batch([&](int64_t) { return Sample{{x}, {}}; });
}
Tensor ones_at(Device device, int64_t rows, int64_t wide) {
  return full({rows, wide}, 1, {.dtype = f32, .device = device});
}
Variable mean_of(const Values& out, const std::vector<Tensor>&) { return mean(out[0]); }

const SplitBy uniform = SplitBy::parse("uniform");
const EngineOptions zb_h1{.micro_batches = 8, .schedule = ScheduleKind::zb_h1},
    dualpipe_v{.micro_batches = 8, .schedule = ScheduleKind::dualpipe_v, .split = uniform},
    interleaved{.micro_batches = 8, .schedule = ScheduleKind::interleaved, .split = uniform};

}  // namespace

TEST_CASE(
    "nccl pipeline: bit-identical to one device, for every schedule, by NCCL, by the host and with shared devices") {
  const Tensors one = train_stages({1, {.micro_batches = 8}, "auto"});
  const auto pairs = [](int rank) { return device_of(rank / 2); };
  EngineOptions four_chunks = interleaved;
  four_chunks.chunks = 4;
  std::vector<StagePlan> plans{
      {2, {.micro_batches = 8, .schedule = ScheduleKind::gpipe}},
      {2, {.micro_batches = 8}},
      {4, {.micro_batches = 8, .dynamic_shapes = true}},
      {2, interleaved},
      {2, four_chunks},
      {4, interleaved},
      {2, zb_h1},
      {4, zb_h1},
      {2, dualpipe_v},
      {4, dualpipe_v},
      {2, {.micro_batches = 8, .split = uniform, .custom = chunk_by_chunk(2, 8, 2)}},
      {2, {.micro_batches = 8}, "native"},
      {4, zb_h1, "auto", pairs},
      {2, interleaved, "auto", [](int) { return device_of(0); }},
  };
  if (thread_sanitized) plans.resize(2);
  for (const StagePlan& plan : plans) {
    CAPTURE(name_of_plan(plan));
    CHECK(differing(one, train_stages(plan)) == "");
  }
}

TEST_CASE("nccl pipeline: the same bits whenever streams do their work, and behind copies of the pipeline") {
  const Tensors one = train_stages({1, {.micro_batches = 8}, "auto"});
  for (uint64_t seed = 0; seed < (sanitized ? 1 : 4); ++seed) {
    CAPTURE(seed);
    const StreamPolicy policy(seed == 0 ? fake::Policy::eager : fake::Policy::random, seed);
    CHECK(differing(one, train_stages({4, {.micro_batches = 8}})) == "");
    CHECK(differing(one, train_stages({2, dualpipe_v})) == "");
  }
  const EnvironmentVariable exact("LOCKSTEP_NCCL_EXACT", "1");
  CHECK(differing(one, train_stages({4, {.stages = 2, .micro_batches = 4}})) == "");
}

TEST_CASE("nccl pipeline: the same bits when ranks no longer compare their messages, and hosts are ahead of devices") {
  const auto of = [](int ranks, const EngineOptions& options, const char* backend = "nccl") {
    return StagePlan{ranks, options, backend, device_of, thread_sanitized ? 2 : 16};  // at least 8 messages a step
  };
  const Tensors one = train_stages(of(1, {.micro_batches = 8}, "auto"));
  CHECK(differing(one, train_stages(of(2, {.micro_batches = 8}, "native"))) == "");
  for (uint64_t seed = 0; seed < (sanitized ? 1 : 3); ++seed) {
    CAPTURE(seed);
    const StreamPolicy policy(seed == 0 ? fake::Policy::lazy : fake::Policy::random, seed);
    CHECK(differing(one, train_stages(of(2, {.micro_batches = 8}))) == "");
    CHECK(differing(one, train_stages(of(4, zb_h1))) == "");
    CHECK(differing(one, train_stages(of(2, dualpipe_v))) == "");
  }
}

TEST_CASE("nccl pipeline: the memory of a stage does not grow with the micro-batches") {
  constexpr int64_t rows = 64, wide = 64;
  const auto peaks = [&](int micro_batches) {
    return on_ranks<int64_t>(3,
                             [&](int rank) {
                               const Device device = device_of(rank);
                               PipelineEngine engine(linears(3, wide, device), {.micro_batches = micro_batches},
                                                     mean_of);
                               const Tensor x = ones_at(device, rows, wide);
                               int64_t peak = 0;
                               // the first 100 messages are compared on the host
                               for (int sent = 0; sent < 3 * 128; sent += micro_batches) {
                                 synchronize(device);
                                 dist::world().barrier();
                                 reset_peak_memory(device);
                                 train_on(engine, x);
                                 peak = memory_report(device).total.peak;
                                 for (Variable& p : engine.module().parameters()) p.clear_grad();
                               }
                               return peak;
                             },
                             {.backend = "nccl", .timeout = dist::Seconds(60)});
  };
  const auto few = peaks(16), many = peaks(128);
  for (size_t rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    CHECK(many[rank] <= few[rank] + 6 * rows * wide * 4);  // gradients are summed in a tree; and the losses
  }
}

TEST_CASE("nccl pipeline: nothing but losses goes to the host in a step, and few waits for the device") {
  constexpr int64_t rows = 16, wide = 32, many = 8;
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
    for (const char* backend : {"nccl", "native"}) {
      CAPTURE(name_of(kind));
      CAPTURE(backend);
      fake::ToHost observed;
      on_ranks(
          3,
          [&](int rank) {
            const Device device = device_of(rank);
            PipelineEngine engine(linears(3, wide, device), {.micro_batches = int(many), .schedule = kind}, mean_of);
            const Tensor x = ones_at(device, rows, wide);
            for (int step = 0; step < 15; ++step) {  // more than the first 100 messages, which are compared on the host
              const auto step_to_host = to_host_during(device, [&] { train_on(engine, x); });
              if (rank == 0) observed = step_to_host;
              for (Variable& p : engine.module().parameters()) p.clear_grad();
            }
          },
          {.backend = backend, .timeout = dist::Seconds(60)});
      const int64_t activations = 2 * 2 * many * rows * wide * 4;  // forward and backward over two links
      if (std::string(backend) == "native") {
        CHECK(observed.bytes >= activations);
      } else {
        CHECK(observed.copies == many);  // one loss per micro-batch
        CHECK(observed.bytes <= many * 8);
        CHECK(observed.waits <= 2 * many + 3);  // for the losses, and one at the end of each rank's step
      }
    }
}

TEST_CASE("nccl pipeline: stages that compute for long, with receives on streams, are not taken for a deadlock") {
  check_ranks(2,
              [](int rank) {
                const Device device = device_of(rank);
                std::vector<LayerSpec> layers = linears(2, 4, device);
                layers[size_t(rank)].with([](nn::Module* m, const Values& in) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(900));
                  return Values{m->call(in[0])};
                });
                PipelineEngine engine(std::move(layers), {.micro_batches = 3}, mean_of);
                const Tensor x = ones_at(device, 2, 4);
                require(std::isfinite(train_on(engine, x)), "the loss");
              },
              {.backend = "nccl", .timeout = dist::Seconds(60), .heartbeat = dist::Seconds(0.2)});
}

TEST_CASE("nccl pipeline: a stage that dies, throws or never comes is told to all others, in time, over processes") {
  enum class End { dies, throws, sleeps };
  for (const End end : {End::dies, End::throws, End::sleeps}) {
    CAPTURE(int(end));
    const double start = now_seconds();
    const std::string text = outcome(3,
                                     [end](int rank) {
                                       const Device device = device_of(rank);
                                       std::vector<LayerSpec> layers = linears(3, 4, device);
                                       if (rank == 1) {
                                         layers[1].with([end, calls = 0](nn::Module* m, const Values& in) mutable {
                                           if (++calls == 3) {
                                             if (end == End::dies) raise(SIGKILL);
                                             if (end == End::throws) fail("this layer breaks");
                                             std::this_thread::sleep_for(std::chrono::seconds(60));
                                           }
                                           return Values{m->call(in[0])};
                                         });
                                       }
                                       PipelineEngine engine(std::move(layers), {.micro_batches = 8}, mean_of);
                                       const Tensor x = ones_at(device, 2, 4);
                                       train_on(engine, x);
                                     },
                                     {.kind = dist::SpawnOptions::Kind::processes,
                                      .backend = "nccl",
                                      .timeout = dist::Seconds(end == End::sleeps ? 2 : 30),
                                      .heartbeat = dist::Seconds(0.5)});
    CAPTURE(text);
    const char* const expected = end == End::dies     ? "rank 1"
                                 : end == End::throws ? "[pipeline] layer 1: this layer breaks"
                                                      : "waited 2 s in group pp.";
    CHECK(contains(text, expected));
    CHECK(now_seconds() - start < 20 + 10 * slack());
  }
}
