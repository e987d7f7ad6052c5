#pragma once
// Shared by the tests of the engine: a data set, and training steps by an engine or by a plain loop over DDP.
#include <doctest/doctest.h>

#include "engine/engine.h"
#include "tests/temp_dir.h"
#include "tests/zero/util.h"

namespace testing {

using engine::Config;

/// A log that ignores everything.
constexpr auto quiet = [](const std::string&) {};

/// `count` samples of 6 numbers in 3 classes.
inline data::TensorDataset samples(int64_t count = 64) {
  manual_seed(3);
  set_random_step(5);
  const Tensor x = randn({count, 6});
  return {x, argmax(x.narrow(1, 0, 3), 1)};
}

/// Settings under which `stage` and `dtype` make a difference in a few steps.
inline Config config_of(int stage, int64_t accumulation, DType dtype = f32) {
  Config c{.train_micro_batch_size_per_gpu = 2, .gradient_accumulation_steps = accumulation, .gradient_clipping = 0};
  c.zero_optimization.stage = stage;
  c.zero_optimization.stage3_param_persistence_threshold = 500;
  c.fp16 = {.enabled = dtype == f16, .auto_cast = true, .initial_scale_power = 8, .hysteresis = 1};
  c.bf16 = {.enabled = dtype == bf16, .auto_cast = true};
  return c;
}

/// The model; its values differ between ranks.
inline std::unique_ptr<Net> make_net(int rank = 0) {
  manual_seed(1 + uint64_t(rank));  // only the values of rank 0 matter: they are broadcast
  return std::make_unique<Net>();
}

/// AdamW with lr 1e-2 and weight decay 0.1.
inline std::unique_ptr<optim::Optimizer> make_adamw(nn::Module& m) {
  return std::make_unique<optim::AdamW>(m.parameters(), optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
}

/// A copy of all parameters, gathered from all ranks.
inline Tensors whole_parameters(engine::EngineBase& e, nn::Module& net) {
  const auto whole = e.zero().gathered();
  return copy_parameters(net);
}

/// Trains `steps` steps of an engine with its own loader, from the current position.
template <class M> void train_steps(engine::Engine<M>& e, int64_t steps) {
  const int64_t until = e.global_steps() + steps;
  e.training_dataloader()->load_state(e.training_dataloader()->state());  // resumes an epoch whose loop was left early
  while (e.global_steps() < until) {
    for (auto& [x, y] : *e.training_dataloader()) {
      e.backward(cross_entropy(e(x), y));
      e.step();
      if (e.global_steps() == until) break;
    }
  }
}

/// A training by an engine: ranks, configuration, steps, and samples in the data set.
struct EnginePlan {
  int ranks = 1;
  Config config;
  int64_t steps = 4;
  int64_t dataset = 64;
};

/// The parameters after some steps, which must be equal on all ranks.
inline Tensors train_engine(const EnginePlan& plan) {
  const auto all = on_ranks<Tensors>(plan.ranks, [&](int rank) {
    const auto net = make_net(rank);
    optim::AdamW optimizer(net->parameters(), {.lr = 1e-2, .weight_decay = 0.1});
    auto [e, same, loader, schedule] = engine::initialize(*net, {.optimizer = &optimizer,
                                                                 .training_data = data::share(samples(plan.dataset)),
                                                                 .config = plan.config,
                                                                 .log = [](const std::string&) {}});
    train_steps(e, plan.steps);
    return whole_parameters(e, *net);
  });
  for (const Tensors& other : all) CHECK(differing(all[0], other) == "");
  return all[0];
}

/// Trains the same model with DistributedDataParallel, by hand, without an engine.
inline Tensors train_plain(int ranks, int64_t accumulation, DType dtype, int64_t steps = 4, double clip = 0) {
  return on_ranks<Tensors>(ranks, [&](int rank) {
    const auto net = make_net(rank);
    net->to(dtype);
    optim::AdamW optimizer(net->parameters(), {.lr = 1e-2, .weight_decay = 0.1});
    parallel::DistributedDataParallel ddp(*net);
    const int64_t count = accumulation * ranks;
    const double scale = dtype == f16 ? 256. / double(count) : 1;  // f16 gradients are divided before they are summed
    data::DataLoader<data::Example> loader(
        samples(),
        {.batch_size = 2,
         .sampler = data::MicroBatchSampler(
             {.samples = 64, .micro_batch = 2, .micro_batches = count, .world = ranks, .rank = rank, .seed = 1234}),
         .world = ranks});
    manual_seed(1234);
    for (int64_t step = 0; step < steps;) {
      int64_t i = 0;
      for (auto& [x, y] : loader) {
        {
          std::optional<parallel::DistributedDataParallel::NoSync> local;
          if (i + 1 < accumulation) local.emplace(ddp);
          set_random_step(uint64_t(step), uint64_t(rank * accumulation + i));
          const Variable loss = cross_entropy((*net)(x.to(dtype)), y);
          (scale == 1 ? loss : mul_scalar(loss.to(f32), scale)).backward();
        }
        if (++i < accumulation) continue;
        i = 0;
        if (clip > 0) {
          for (const Variable& p : net->parameters()) mul_scalar_(p.grad(), 1 / double(accumulation));
          optim::clip_grad_norm(net->parameters(), clip);
          optimizer.step();
        } else {
          optimizer.step(1 / (double(accumulation) * scale));
        }
        optimizer.zero_grad();
        if (++step == steps) break;
      }
    }
    return copy_parameters(*net);
  })[0];
}

}  // namespace testing
