#pragma once
// Runs of small language models in a precision, for tests.
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/files.h"
#include "data/text.h"
#include "nn/models/gpt.h"
#include "optim/optim.h"
#include "optim/schedule.h"
#include "tensor/random.h"
#include "tests/golden_folder.h"
#include "tests/models.h"
#include "tests/output.h"
#include "train/trainer.h"

namespace testing {

using namespace lockstep;

constexpr int64_t text_window = 32;

inline nn::GPT::Options sizes_of_gpt() {
  return {.vocab = 256, .context = text_window, .layers = 2, .width = 48, .heads = 4};
}
inline nn::GPT::Options sizes_of_llama() { return as_llama(sizes_of_gpt()); }

/// The bytes of this repository's license, as tokens.
inline Tensor license_tokens() {
  std::filesystem::path folder = golden_folder();  // of tests/, or of an extension's tests
  while (!std::filesystem::exists(folder / "LICENSE")) folder = folder.parent_path();
  const std::string all = data::read_file((folder / "LICENSE").string(), INT64_MAX);
  std::vector<int64_t> ids;
  for (const char c : all) ids.push_back(static_cast<unsigned char>(c));
  return Tensor::from(ids, {int64_t(ids.size())});
}

inline train::TrainOptions precise(const std::string& precision, int64_t steps) {
  train::TrainOptions o;
  o.parallel.ranks = 1;
  o.batch = 4, o.steps = steps, o.precision = precision, o.json = true;
  return o;
}

/// The output of a run of a GPT, and the losses of its steps. look: called after each step.
struct PrecisionRun {
  std::string out;
  std::vector<double> losses;
  nn::State model;
};
inline PrecisionRun train_precisely(const nn::GPT::Options& sizes, const train::TrainOptions& o,
                                    const std::function<void(train::Trainer&, const train::RunState&)>& look = {}) {
  PrecisionRun found;
  const HeldOutput out;
  train::start(o, "", [&](train::TrainJob& job) {
    manual_seed(3);
    nn::GPT model(sizes);
    const data::TokenBatches batches(license_tokens(), 5);
    std::optional<train::Trainer> trainer;
    train::TrainerOptions t;
    t.batches = [&](int64_t step, int64_t micro, int64_t n) { return batches.sample(step, micro, n, sizes.context); };
    t.optimizer = optimizer_of<optim::AdamW>(optim::AdamWOptions{.lr = 5e-4});
    // Without a warm-up, f32 is as far from itself when its last bits change.
    t.schedule = [](optim::Optimizer& optimizer, int64_t steps) {
      return std::make_unique<optim::LambdaLR>(optimizer, optim::warmup_cosine(20, steps, 0.1));
    };
    t.config = data::Json::Object{{"gradient_clipping", 1}};
    t.callbacks = {{.on_step_end = [&](train::RunState& at) {
      if (job.team().leads()) found.losses.push_back(at.loss);
      if (look) look(*trainer, at);
    }}};
    trainer.emplace(job, model, t);
    trainer->fit();
    const nn::State full = trainer->full_model();
    if (job.team().leads()) found.model = full;
  });
  found.out = out.text();
  return found;
}

}  // namespace testing
