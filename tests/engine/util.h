#pragma once
// Shared by the tests of the engine: a data set, a configuration, and training steps.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/engine.h"
#include "engine/pipeline_module.h"
#include "parallel/gradient_sum.h"
#include "pipeline/engine.h"
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

/// The cross entropy of a model's scores, as the loss of a PipelineModule.
inline Variable loss_of_scores(const pipeline::Values& out, const std::vector<Tensor>& targets) {
  return cross_entropy(out[0], targets[0]);
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

inline auto sgd_of(double lr) { return optimizer_of<optim::SGD>(optim::SGDOptions{.lr = lr}); }
/// A warm-up to 2e-2 in eight steps.
inline std::unique_ptr<optim::Schedule> make_warmup(optim::Optimizer& o) {
  return std::make_unique<optim::WarmupLR>(
      o, optim::WarmupLR::Options{.warmup_max_lr = 2e-2, .warmup_num_steps = 8, .warmup_type = optim::Warmup::linear});
}

/// A copy of all parameters, gathered from all ranks.
inline Tensors full_parameters(engine::EngineBase& e, nn::Module& net) { return gathered_parameters(e.zero(), net); }

/// A Net, and the engine that trains it on this rank.
struct NetEngine {
  explicit NetEngine(engine::InitializeArgs args, std::unique_ptr<Net> own = make_net())
      : net(std::move(own)), e(*net, std::move(args)) {}
  Tensors parameters() { return full_parameters(e, *net); }
  /// The backward of a loss of constant data, and step().
  void train_once(int64_t rows = 2) { backward(rows), e.step(); }
  void backward(int64_t rows = 2) { e.backward(loss(rows)); }
  Variable loss(int64_t rows = 2) { return mean(square(e(ones({rows, 6})))); }

  std::unique_ptr<Net> net;
  engine::Engine<Net> e;
};

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

/// The configuration with an optimizer by its name; params: JSON.
inline Config with_optimizer(Config c, const std::string& type, const std::string& params = "{}") {
  c.optimizer = {.type = type, .params = data::parse_json(params, "params")};
  return c;
}
/// A Net under an engine whose configuration names the optimizer, with a loader, and what the engine logged.
struct NetTrainer {
  std::unique_ptr<Net> net;
  std::vector<std::string> said;
  engine::Engine<Net> e;
  explicit NetTrainer(const Config& config, int rank = 0)
      : net(make_net(rank)),
        e(*net, {.training_data = data::share(samples(48)), .config = config, .log = [this](const std::string& text) {
                   said.push_back(text);
                 }}) {}
  bool has_said(const std::string& text) const {
    return std::any_of(said.begin(), said.end(), [&](const std::string& line) { return contains(line, text); });
  }
};

}  // namespace testing
