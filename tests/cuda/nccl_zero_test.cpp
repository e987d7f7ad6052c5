// ZeRO with parameters on devices: NCCL carries gradients and parameters, and offloaded state is updated on the host.
#include <doctest/doctest.h>

#include <algorithm>

#include "nn/container.h"
#include "tensor/graph.h"
#include "tensor/stream.h"
#include "tests/cuda/nccl_util.h"
#include "tests/cudasim/fake.h"
#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::Offload;
using zero::ZeroOptions;

namespace {

ZeroOptions options(int stage, Offload state = Offload::none, Offload shards = Offload::none) {
  ZeroOptions o{
      .stage = stage, .reduce_bucket_size = 5000, .prefetch_bucket_size = 20000, .param_persistence_threshold = 100};
  o.offload_optimizer = {.device = state, .nvme_path = folder};
  o.offload_param = {.device = shards, .nvme_path = folder, .max_in_cpu = 0};
  return o;
}

}  // namespace

TEST_CASE(
    "nccl: every stage of ZeRO, with state and shards on the device, on the host and in files: bit-identical to one "
    "device") {
  const EnvironmentVariable exact("LOCKSTEP_NCCL_EXACT", "1");  // NCCL sums in the order of the CPU's backend
  // Under ThreadSanitizer a row takes a minute: only one row of each kind.
  const auto dtypes = thread_sanitized ? std::vector{f32} : std::vector{f32, bf16};
  const auto worlds = thread_sanitized ? std::vector{2} : std::vector{1, 2, 4};
  for (const DType dtype : dtypes) {
    // In 16 bits only another ZeRO run has the same bits, since ZeRO keeps f32 master weights.
    const ZeroPlan one{.options = dtype == f32 ? std::nullopt : std::optional(options(0)),
                       .dtype = dtype,
                       .max_norm = 0.5,
                       .steps = 2,
                       .device = device_of};
    const Tensors wanted = train(one);
    const auto check = [&](int ranks, const ZeroOptions& o) {
      INFO(dtype, " on ", ranks, " ranks, stage ", o.stage, ", state ", zero::name_of(o.offload_optimizer.device),
           ", shards ", zero::name_of(o.offload_param.device));
      ZeroPlan plan = one;
      plan.ranks = ranks;
      plan.accumulation = 8 / ranks;
      plan.options = o;
      CHECK(differing(wanted, train(plan)) == "");
    };
    for (int stage = 0; stage <= 3; ++stage)
      for (const int ranks : worlds) check(ranks, options(stage));
    ZeroOptions full = options(2);  // all-reduce instead of reduce-scatter
    full.reduce_scatter = false;
    check(2, full);
    for (const Offload state : {Offload::cpu, Offload::nvme})
      for (int stage = 1; stage <= 3; ++stage) check(2, options(stage, state));
    for (const Offload state : {Offload::none, Offload::cpu, Offload::nvme})
      for (const Offload shards : {Offload::cpu, Offload::nvme}) check(2, options(3, state, shards));
  }
}

TEST_CASE("nccl: ZeRO's ledger on devices: shards, and no offloaded state") {
  for (const Offload place : {Offload::none, Offload::cpu})
    check_ranks(4, [&](int rank) {
      const Device device = device_of(rank);
      Even net;
      net.to(device);
      const auto optimizer = adamw(net.parameters());
      ZeroOptions o = options(3, place, place);
      o.param_persistence_threshold = 0;
      Zero zero(net, *optimizer, o);
      sum(net(Variable(randn({2, 64}).to(device)))).backward();
      zero.step();
      const MemoryReport report = memory_report(device);
      const auto held = [&](Memory category) { return report.category[size_t(category)].current; };
      const bool here = place == Offload::none;
      expect("parameters", held(Memory::parameter), here ? psi * 4 / 4. : 0);
      expect("optimizer", held(Memory::optimizer), here ? psi * 8 / 4. : 0);
      expect("offload", held(Memory::offload), 0);
    });
}

TEST_CASE("nccl: the host waits for nothing in forward and backward, in every stage, and reads once in a step") {
  for (const int stage : {0, 1, 2, 3})
    for (const bool ahead : {true, false}) {
      CAPTURE(stage);
      CAPTURE(ahead);
      fake::ToHost observed, in_step;
      check_ranks(4, [&](int rank) {
        const Device device = device_of(rank);
        Even net;
        net.to(device);
        const auto optimizer = adamw(net.parameters());
        ZeroOptions o = options(stage);
        o.param_persistence_threshold = 0;
        o.overlap_comm = ahead;
        Zero zero(net, *optimizer, o);
        const Tensor x = randn({2, 64}).to(device);
        for (int step = 0; step < 3; ++step) {
          const fake::ToHost passes = to_host_during(device, [&] { sum(net(Variable(x))).backward(); }),
                             steps = to_host_during(device, [&] { zero.step(); });
          if (rank == 0) observed = passes, in_step = steps;
        }
      });
      CHECK(observed.copies == 0);
      CHECK(observed.waits == 0);
      CHECK(in_step.copies == 4);  // one per rank
    }
}

TEST_CASE("nccl: after a recording that failed in forward ZeRO 3 gathers anew") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const auto trained = [&](bool records) {
      return on_ranks<std::vector<float>>(ranks, [&](int rank) {
        manual_seed(2);
        const Device device = device_of(rank);
        Even net;
        net.to(device);
        net.b.after_forward([](nn::Module&, const std::vector<Variable>&, const Variable&) {
          LOCKSTEP_CHECK(!Graph::is_recording(), "looked at");
        });
        const auto optimizer = adamw(net.parameters());
        ZeroOptions o = options(3);
        o.prefetch_bucket_size = psi;
        Zero zero(net, *optimizer, o);
        const Tensor x = ones({2, 64}, {.device = device});
        const auto step = [&] {
          sum(net(Variable(x))).backward();
          zero.step();
        };
        step();
        if (records) {
          Graph graph(device);
          const std::string text = message([&] { graph.record(step); });
          require(contains(text, "looked at"), text);
        }
        step();
        const auto full = zero.gathered();
        return net.b.weight.tensor().to(cpu).to_vector<float>();
      });
    };
    CHECK(trained(true) == trained(false));
  }
}

TEST_CASE("nccl: a graph of ZeRO 3 holds the parameters gathered at a time, not the whole model") {
  const auto grown_by = [](int layers) {
    int64_t bytes = 0;
    check_ranks(4, [&](int rank) {
      const Device device = device_of(rank);
      nn::Sequential net;
      for (int i = 0; i < layers; ++i) net.add(matrix(256, 256));
      net.to(device);
      const auto optimizer = adamw(net.parameters());
      ZeroOptions o = options(3);
      o.prefetch_bucket_size = 256 * 256;
      Zero zero(net, *optimizer, o);
      const Tensor x = ones({2, 256}, {.device = device});
      const auto step = [&] {
        sum(net(Variable(x))).backward();
        zero.step();
      };
      for (int i = 0; i < 2; ++i) step();
      const auto held = [&] {
        synchronize(device);
        dist::world().barrier();
        const auto now = int64_t(fake::held().bytes);
        dist::world().barrier();
        return now;
      };
      const int64_t before = held();
      Graph graph(device);
      graph.record(step);
      const int64_t after = held();
      if (rank == 0) bytes = after - before;
    });
    return bytes / 4;
  };
  const int64_t matrix = 256 * 256 * 4, each = (grown_by(16) - grown_by(8)) / 8;
  CHECK_MESSAGE(each < matrix / 2, each);
  CHECK_MESSAGE(each >= matrix / 4, each);  // the gradient, of which a rank holds a quarter
}

TEST_CASE(
    "nccl: a step of ZeRO in a graph is bit-identical to one that is not, skipped steps and loss scale included") {
  for (const DType dtype : {f32, bf16, f16})
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(dtype);
      CAPTURE(stage);
      check_ranks(1, [&](int) {
        const Device device = device_of(0);
        const auto trained = [&](bool records) {
          manual_seed(3);
          Even net;
          net.to(dtype);
          net.to(device);
          optim::AdamW optimizer({{.parameters = {net.a.weight}, .options = {.lr = 1e-2}},
                                  {.parameters = {net.b.weight, net.c.weight}, .options = {.lr = 1e-3}}});
          ZeroOptions o = options(stage);
          o.nonfinite = zero::NonFinite::skip;
          Zero zero(net, optimizer, o);
          optim::DynamicLossScaler scaler({.init_scale = 64, .scale_window = 2});
          const zero::StepOptions request{.max_norm = 0.5, .scaler = dtype == f16 ? &scaler : nullptr};
          const Tensor x = empty({2, 64}, {.dtype = dtype, .device = device}),
                       scale = empty({1}, {.dtype = f32, .device = device});
          const auto backward = [&] { sum(mean(square(net(Variable(x)).to(f32))) * Variable(scale)).backward(); };
          std::vector<double> observed;
          const auto note = [&](const zero::StepReport& report) {
            observed.insert(observed.end(), {report.skipped ? -1 : report.norm, double(report.skipped),
                                             double(report.first_nonfinite.size()), scaler.scale()});
          };
          Graph graph(device);
          for (int step = 0; step < 8; ++step) {
            optimizer.set(0, "lr", 0.01 / (step + 1));
            manual_seed(uint64_t(step + 10));
            x.copy_(randn({2, 64}));
            scale.fill_(step == 3 || step == 5 ? double(INFINITY) : dtype == f16 ? scaler.scale() : 1);
            if (!records || step == 0) {
              const auto now = [&] {
                backward();
                if (!Graph::is_capturing()) note(zero.step(request));
                else zero.step(request);
              };
              records ? graph.capture(now) : now();
              continue;
            }
            zero.before_replay(request);
            graph.replay();
            note(zero.after_replay(request));
          }
          std::vector<std::vector<double>> bits;
          for (const zero::StatePiece& piece : zero.state()) bits.push_back(piece.tensor.to(cpu).to_vector<double>());
          for (const auto& [name, number] : zero.numbers()) observed.push_back(number);
          return std::pair(observed, bits);
        };
        const auto eager = trained(false), recorded = trained(true);
        require(eager.first == recorded.first, "norms, skips or step numbers differ");
        require(eager.second == recorded.second, "parameters or state differ");
        require(std::count(eager.first.begin(), eager.first.end(), -1) == 2, "expected two skipped steps");
      });
    }
}

TEST_CASE("nccl: ZeRO rejects wrong devices") {
  const auto with_two_devices = [](int) {
    Net net;
    net.c.to(device_of(0));
    const auto optimizer = adamw(net.parameters());
    Zero zero(net, *optimizer, {.stage = 1});
  };
  CHECK_ERROR(dist::spawn(1, with_two_devices),
              "expected all parameters on one device, got a.weight on cpu:0 and c.weight on cuda:0");
}
