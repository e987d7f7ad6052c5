#pragma once
// A training of a small classifier by TrainingArguments, for tests.
#include <functional>
#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "extensions/hugging_face/arguments.h"
#include "nn/linear.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tests/output.h"

namespace testing {

using namespace lockstep;

/// What a training gave: on rank 0.
struct Trained {
  std::vector<float> weights;
  std::vector<double> rates;
  int64_t steps = 0;
  data::Json log = data::Json::Array();
  train::Predictions predicted;
};

/// Starts a training without output.
inline void start_with(const train::TrainingArguments& args, int ranks, const train::Body& body) {
  train::TrainOptions options = args.options();
  options.parallel.ranks = ranks;
  options.json = true;
  const HeldOutput nowhere;
  train::start(options, "", body);
}

/// Trains a small classifier. evaluates: also evaluates and predicts. change: may change the Trainer's options.
inline Trained train_with(const train::TrainingArguments& args, int ranks = 1, bool evaluates = false,
                          const std::function<void(train::TrainerOptions&)>& change = {}) {
  Trained found;
  start_with(args, ranks, [&](train::TrainJob& job) {
    manual_seed(5);
    nn::Linear net({.in = 6, .out = 3});
    const Tensor x = randn({44, 6}), y = argmax(x.narrow(1, 0, 3), 1);
    train::TrainerOptions o = args.trainer_options();
    if (!o.loss) o.loss = [](const Variable& out, const Tensor& target) { return cross_entropy(out, target); };
    o.data = data::share(data::TensorDataset(x, y));
    o.callbacks.push_back({.on_step_end = [&](train::RunState& at) {
      if (job.team().leads()) found.rates.push_back(at.lr);
    }});
    const data::TensorDataset test(x.narrow(0, 0, 21).contiguous(), y.narrow(0, 0, 21).contiguous());
    if (evaluates) {
      o.evaluate = data::share(test);
      o.compute_metrics = [](const train::Predictions& p) {
        const double right = sum(eq(argmax(p.predictions, 1), p.label_ids).to(f32)).item();
        return std::vector<std::pair<std::string, double>>{{"accuracy", right / double(p.label_ids.numel())}};
      };
    }
    if (change) change(o);
    train::Trainer trainer(job, net, o);
    trainer.fit();
    train::Predictions predicted;
    if (evaluates) predicted = trainer.predict(test);
    const auto model = trainer.full_model();
    if (!job.team().leads()) return;
    found.log = trainer.log_history();
    found.predicted = predicted;
    found.steps = trainer.step();
    for (const auto& [name, tensor] : model)
      for (const float value : tensor.to_vector<float>()) found.weights.push_back(value);
  });
  return found;
}

}  // namespace testing
