// A Python training script for DeepSpeed, in C++: a model of two layers, trained as ds_config.json says.
//
//   lockstep run -n 4 -- train --deepspeed_config ds_config.json
//
// The Python script differs in two ways: its DataLoader gives every rank the same samples (here the engine makes a
// loader that distributes micro-batches over ranks), and it calls save_checkpoint() only at local_rank 0, which would
// wait for the other ranks forever.
#include <lockstep.h>

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

namespace ls = lockstep;

struct SimpleModel : ls::nn::Layer<SimpleModel> {
  ls::nn::Linear linear1{{.in = 10, .out = 20}}, linear2{{.in = 20, .out = 1}};
  ls::Variable forward(const ls::Tensor& x) { return linear2(ls::relu(linear1(x))); }
  void fields(ls::nn::Fields& f) override { f("linear1", linear1)("linear2", linear2); }
};

int run(const ls::engine::Arguments& args, int64_t epochs) {
  // 1. Model and data; the seed makes them equal on all ranks.
  ls::manual_seed(1234);
  SimpleModel model;
  const ls::data::TensorDataset dataset(ls::randn({100, 10}), ls::randn({100, 1}));

  // 2. The engine
  auto [engine, optimizer, loader, schedule] =
      ls::engine::initialize(model, {.training_data = ls::data::share(dataset), .args = &args});
  std::cout << ls::str("Rank ", engine.global_rank(), ": Starting training...\n") << std::flush;

  // 3. Training loop
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    int64_t i = 0;
    for (auto& [inputs, labels] : *loader) {
      const ls::Variable outputs = engine(inputs);
      const ls::Variable loss = ls::mse_loss(outputs.to(ls::f32), labels);
      engine.backward(loss);
      engine.step();
      if (++i % engine.steps_per_print() == 0) {
        std::cout << ls::str("Rank ", engine.global_rank(), ", Epoch [", epoch + 1, "/", epochs, "], Step [", i, "/",
                             loader->size(), "], Loss: ", loss.item(), "\n")
                  << std::flush;
      }
    }
    if (engine.global_rank() == 0)
      std::cout << "Epoch " << epoch + 1 << " finished, loss of the last step " << std::setprecision(12)
                << engine.train_loss() << std::endl;
  }

  // 4. All ranks save, each its shard.
  ls::data::Json state;
  state["epoch"] = epochs - 1;
  engine.save_checkpoint("final_model_checkpoint", {.client_state = state});
  engine.wait_for_checkpoint();
  if (engine.global_rank() == 0) std::cout << "Training finished and model saved.\n" << std::flush;
  return 0;
}

int main(int argc, char** argv) {
  CLI::App app("The training script of the guide", "train");
  ls::engine::Arguments args{.deepspeed_config = "ds_config.json"};
  int64_t epochs = 10;
  ls::engine::add_config_arguments(app, args);
  app.add_option("--epochs", epochs, "passes over the data");
  CLI11_PARSE(app, argc, argv);
  ls::engine::init_distributed();
  run(args, epochs);
  ls::dist::shutdown();
}
