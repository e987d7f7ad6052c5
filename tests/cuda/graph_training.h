#pragma once
// Trains a small GPT with or without graphs, for tests that compare the two.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "autograd/ops.h"
#include "engine/engine.h"
#include "engine/pipeline_module.h"
#include "extensions/fp8/section.h"
#include "nn/container.h"
#include "nn/linear.h"
#include "nn/models/gpt.h"
#include "nn/norm.h"
#include "optim/loss_scaler.h"
#include "optim/optim.h"
#include "parallel/mesh.h"
#include "parallel/sequence/context_parallel.h"
#include "parallel/tensor_parallel/apply.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tests/cuda/device.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"
#if defined(SIMT_CPU)
#include "engine/pipeline_module.h"
#include "tests/cudasim/fake.h"
#endif

namespace testing {

using namespace lockstep;

struct Plan {
  int64_t accumulation = 1, steps = 6;
  int stage = 0;
  double clipping = 0;
  nn::GPT::Options model{.vocab = 17, .context = 8, .layers = 2, .width = 16, .heads = 2, .dropout = 0.1};
  std::vector<int64_t> lengths{8};  // context lengths that micro-batches cycle through
  std::optional<DType> autocast = {};
  bool half = false;    // true: train in f16 with a loss scale that grows until gradients overflow
  bool tokens = false;  // true: losses are sums, divided by the number of targets in a step
  bool grad_scaler = false;
  bool reuses = false;  // true: every micro-batch is written to the same memory
  bool draws = false;   // true: the data loader also draws random numbers, a varying count
  double average = 0;
  bool breakdown = false;
  bool checkpoints = false;
  bool fp8 = false;
  std::string saves = {}, loads = {};  // checkpoint folders: saved at the end, loaded at the start
  std::function<void(nn::GPT&)> prepare = {};
  pipeline::Loss loss = {};
  int bucket = 6'500'000;
  bool overlap = true;
  int64_t reuse = 0;          // ZeRO 3's max_reuse_distance, in elements
  const char* parallel = "";  // a parallel plan; "": plain data parallelism
  sequence::ContextOptions context = {};
  bool cuts_sequences = false;  // true: sequence parallelism of tensor-parallel ranks
  int64_t chunks = 0;
  const char* schedule = "1f1b";
  int64_t recompute = 0;
  std::function<void(engine::EngineBase& e, int64_t step)> before = {};
  std::function<int64_t(int64_t micro)> length = {};  // replaces `lengths` if set
};

/// The loss of a Plan's model; calls look(loss) for each micro-batch.
inline pipeline::Loss on_loss(std::function<void(const Variable&)> look) {
  return [look](const pipeline::Values& out, const std::vector<Tensor>& targets) {
    const Variable loss = cross_entropy(out[0].reshape({-1, 17}), targets[0].reshape({-1}));
    look(loss);
    return loss;
  };
}

struct Result {
  std::vector<double> losses, norms;
  nn::State state;
  RandomState random;
  std::vector<int64_t> skipped_steps;
  std::vector<std::string> skips;           // the messages about skipped steps
  std::map<std::string, int64_t> launches;  // launches of the last step, by kernel
  std::string graphs;
  std::vector<std::string> said;
};

/// Trains the plan's model on this rank's `device`.
inline Result train(const Plan& plan, bool graphs, Device device = cuda0) {
  Result result;
  manual_seed(4);
  auto gpt = std::make_shared<nn::GPT>(plan.model);
  gpt->to(device);
  if (plan.prepare) plan.prepare(*gpt);
  std::optional<parallel::Mesh> mesh;
  if (*plan.parallel) mesh.emplace(parallel::parse_plan(plan.parallel), dist::world());
  optim::GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  engine::Config config{.train_micro_batch_size_per_gpu = 2,
                        .gradient_accumulation_steps = plan.accumulation,
                        .gradient_clipping = plan.clipping};
  config.zero_optimization.stage = plan.stage;
  config.zero_optimization.reduce_bucket_size = plan.bucket;
  config.zero_optimization.overlap_comm = plan.overlap;
  // low enough that even these small parameters are partitioned
  config.zero_optimization.stage3_param_persistence_threshold = 100;
  config.zero_optimization.stage3_max_reuse_distance = plan.reuse;
  config.fp16 = {.enabled = plan.half, .initial_scale_power = 12, .loss_scale_window = 1, .hysteresis = 1};
  config.activation_checkpointing.enabled = plan.checkpoints;
  config.ema.decay = plan.average;
  config.section<engine::Fp8Config>() = {.enabled = plan.fp8, .amax_history_len = 3};
  config.wall_clock_breakdown = plan.breakdown;
  const parallel::Plan axes = mesh ? mesh->plan() : parallel::Plan();
  if (axes.cp > 1) sequence::share_sequences(*gpt, {std::shared_ptr<void>(), &mesh->cp()}, plan.context);
  const auto part = [&](const Tensor& x) {
    return axes.cp > 1 ? sequence::slice(x, 1, axes.cp, mesh->at().cp, plan.context.order_or_default()) : x;
  };
  config.pipeline.schedule = plan.schedule;
  config.pipeline.activation_checkpoint_interval = plan.recompute;
  engine::PipelineModule module{.model = gpt, .loss_fn = plan.loss};
  if (axes.pp * axes.tp > 1) module.partition_method = "uniform", module.autocast = plan.autocast;
  if (plan.tokens)
    module.tokens = [](const std::vector<Tensor>& targets) { return targets[0].numel() - targets[0].size(0); };
  engine::InitializeArgs args{.config = config,
                              .mesh = mesh ? &*mesh : nullptr,
                              .log =
                                  [&result](const std::string& text) {
                                    if (text.starts_with("steps run without graphs")) result.said.push_back(text);
                                    if (text.starts_with("step ")) result.skips.push_back(text);
                                  },
                              .autocast = plan.autocast,
                              .grad_scaler = plan.grad_scaler ? &scaler : nullptr,
                              .graphs = graphs};
  args.optimizer = [](nn::Module& m) {
    return std::make_unique<optim::AdamW>(m.parameters(), optim::AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
  };
  if (axes.tp > 1)
    args.sharded = tensor_parallel::apply(*gpt, mesh->tp(),
                                          {.sequence = plan.cuts_sequences, .sum = false, .chunks = plan.chunks});
  engine::EngineBase e(std::move(module), std::move(args));
  if (!plan.loads.empty()) CHECK(e.load_checkpoint(plan.loads).has_value());
  int64_t micro = 0;
  Tensor kept[2];
  for (int64_t step = 0; step < plan.steps; ++step) {
    const int64_t skipped = e.skipped_steps();
    if (plan.before) plan.before(e, step);
    e.set_lr(0.01 / double(e.global_steps() + 1));
    if (plan.clipping > 0) e.set_gradient_clipping(plan.clipping * double(step % 3));
#if defined(SIMT_CPU)
    fake::take_launches();
#endif
    result.losses.push_back(e.train_batch([&](int64_t) {
      const int64_t length = plan.length ? plan.length(micro) : plan.lengths[size_t(micro) % plan.lengths.size()];
      ++micro;
      const Tensor tokens = randint(0, plan.model.vocab, {2, length + 1}, {.dtype = i64, .device = cpu});
      for (int64_t i = 0; plan.draws && i < micro % 3; ++i) next_random_key();
      Tensor parts[2];
      for (int64_t i : {0, 1}) {
        parts[i] = part(tokens.narrow(1, i, length)).contiguous().to(device);
        if (!plan.reuses) continue;
        if (kept[i].defined()) kept[i].copy_(parts[i]);
        else kept[i] = parts[i];
        parts[i] = kept[i];
      }
      return pipeline::Sample{{parts[0]}, {parts[1]}};
    }));
#if defined(SIMT_CPU)
    result.launches.clear();
    for (const auto& [name, count] : fake::take_launches()) result.launches[name] = int64_t(count);
#endif
    result.norms.push_back(e.get_global_grad_norm());
    if (e.skipped_steps() > skipped) result.skipped_steps.push_back(step);
  }
  if (!plan.saves.empty()) e.save_checkpoint(plan.saves);
  result.random = random_state();
  const auto full = e.zero().gathered();
  for (const auto& [name, tensor] : e.module().state()) result.state.emplace_back(name, tensor.to(cpu).clone());
  result.graphs = e.graphs();
  return result;
}

inline bool same_number(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// The names of the fields that differ in any bit; "" if none does.
inline std::string differing(const Result& a, const Result& b) {
  std::string all;
  const auto check = [&](const char* what, bool equal) { all += equal ? "" : std::string(what) + " "; };
  check("losses", std::equal(a.losses.begin(), a.losses.end(), b.losses.begin(), b.losses.end(), same_number));
  check("norms", std::equal(a.norms.begin(), a.norms.end(), b.norms.begin(), b.norms.end(), same_number));
  check("skipped steps", a.skipped_steps == b.skipped_steps);
  check("what is said of them", a.skips == b.skips);
  check("random numbers", a.random == b.random);
  check("parameters", a.state.size() == b.state.size());
  for (size_t i = 0; i < std::min(a.state.size(), b.state.size()); ++i)
    check(a.state[i].first.c_str(), equal(a.state[i].second, b.state[i].second));
  return all;
}

/// Trains with and without graphs, checks that both end with the same bits, and returns the result with graphs.
inline Result both(const Plan& plan) {
  const Result replayed = train(plan, true), eager = train(plan, false);
  CHECK(eager.graphs == "none: they are turned off");
  CHECK(eager.said.empty());
  CHECK(differing(replayed, eager) == "");
  return replayed;
}

/// Checks that a plan's steps after the first are replayed, with the bits of steps that run one by one.
inline void check_replayed(const Plan& plan) {
  const Result r = both(plan);
  CHECK(r.graphs == "1 shape recorded, 5 of 6 steps replayed");
  CHECK(r.said.empty());
#if defined(SIMT_CPU)
  // Besides the graph, only kernels for data, loss scale, random keys, learning rates and the next fp8 scales start.
  int64_t others = 0;
  for (const auto& [name, count] : r.launches) others += name == "graph" ? 0 : count;
  CHECK(r.launches.at("graph") == 1);
  CHECK_MESSAGE(others <= 4 + 10 * plan.accumulation + (plan.fp8 ? 16 : 0), others);
#endif
  CHECK(r.losses.front() != r.losses.back());
}

}  // namespace testing
