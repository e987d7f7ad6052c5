// A Python inference script for DeepSpeed, in C++: init_inference() makes an engine, and a loop runs it on each batch.
//
//   lockstep run -n 2 -- inference --config inference_config.json
//
// The Python loop stores the engine's result as `loss`, which is right only for a model whose forward() takes targets
// too. Here forward() takes tokens and returns logits, and the loss is engine.loss(tokens, targets).
#include <lockstep.h>
#include <lockstep/hugging_face.h>
#include <lockstep/inference.h>

#include <CLI/CLI.hpp>
#include <iostream>

namespace ls = lockstep;

/// Writes a model to load: random weights, equal on every rank, in a folder that Transformers can read too.
void write_model(const ls::nn::GPT::Options& options, const std::string& folder) {
  ls::manual_seed(1234);
  ls::nn::GPT model(options);
  ls::nn::save_pretrained(model, folder);
}

void run(const std::string& config) {
  const ls::nn::GPT::Options options{.vocab = 61, .context = 64, .layers = 2, .width = 32, .heads = 4};
  ls::dist::ProcessGroup& world = ls::dist::world();
  if (world.rank() == 0) write_model(options, "model");
  world.barrier();

  // 1. A model without values, and an engine that gives each rank its shard of the weights
  std::unique_ptr<ls::nn::GPT> model;
  {
    const ls::nn::BuildEmpty scope;
    model = std::make_unique<ls::nn::GPT>(options);
  }
  auto engine = ls::inference::init_inference(*model, config);
  engine.profile_model_time();

  // 2. Batches, equal on all ranks that share the model
  ls::manual_seed(1);
  const ls::data::TensorDataset dataset(ls::randint(0, 61, {12, 16}), ls::randint(0, 61, {12, 16}));
  double sum = 0;
  int steps = 0;
  for (auto& [tokens, targets] : ls::data::DataLoader(dataset, {.batch_size = 4})) {
    const ls::Variable logits = engine(tokens);  // forward
    const double loss = engine.loss(tokens, targets).item();
    sum += loss;
    if (world.rank() == 0) std::cout << "step " << steps << ", logits " << logits.shape() << ", loss " << loss << "\n";
    ++steps;
  }

  // 3. Text generation, with beam search
  const std::vector<std::vector<int64_t>> prompts{{1, 2, 3}, {4, 5}};
  const auto answers = engine.generate(prompts, {.max_new_tokens = 8, .num_beams = 2});
  if (world.rank() != 0) return;
  for (const auto& answer : answers) {
    std::cout << "answer";
    for (const int64_t id : answer.tokens) std::cout << " " << id;
    std::cout << "\n";
  }
  std::cout << engine.model_times().size() << " runs of the model on " << world.size() << " ranks\n";
}

int main(int argc, char** argv) {
  CLI::App app("Inference with a model that ranks share");
  std::string config;
  app.add_option("--config", config, "inference configuration")->required();
  CLI11_PARSE(app, argc, argv);
  ls::engine::init_distributed();
  run(config);
  ls::dist::shutdown();
}
