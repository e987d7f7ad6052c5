// A Python script for Accelerate, in C++: model, optimizer, loader and schedule go through prepare(), and the loop is
// the same for any number of ranks.
//
//   accelerate                                        one process
//   lockstep run -n 4 -- accelerate --accumulate 1    four processes, same losses: 4 ranks x 1 batch per step
//
// Each rank loads only its own batches: prepare() divides a DataLoader among the ranks, and rejects any other source of
// data with an error.
#include <lockstep.h>
#include <lockstep/hugging_face.h>
#include <lockstep/optimizers.h>

#include <CLI/CLI.hpp>
#include <iomanip>

namespace ls = lockstep;

struct Classifier : ls::nn::Layer<Classifier> {
  ls::nn::Linear hidden{{.in = 100, .out = 20}}, scores{{.in = 20, .out = 5}};
  ls::Variable forward(const ls::Tensor& x) { return scores(ls::relu(hidden(x))); }
  void fields(ls::nn::Fields& f) override { f("hidden", hidden)("scores", scores); }
};

void run(int64_t accumulate, int64_t epochs) {
  // The seed makes model and data equal on all ranks.
  ls::manual_seed(1234);
  Classifier net;
  const ls::data::TensorDataset dataset(ls::randn({160, 100}), ls::randn({160, 5}));
  ls::data::DataLoader batches(dataset, {.batch_size = 20, .shuffle = true});
  ls::optim::SGD sgd(net.parameters(), {.lr = 0.1});
  ls::optim::StepLR steps(sgd, {.step_size = 2, .gamma = 0.5});

  ls::train::Accelerator acc({.gradient_accumulation_steps = accumulate});
  auto [model, optimizer, loader, schedule] = acc.prepare(net, sgd, batches, steps);
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (auto& [x, y] : loader) {
      auto hold = acc.accumulate(model);
      acc.backward(ls::mse_loss(model(x), y));
      optimizer.step();
      schedule.step();
      optimizer.zero_grad();
    }
    acc.print("epoch ", epoch + 1, ", loss of the last step ", std::setprecision(12), acc.engine().train_loss(),
              ", lr ", schedule.lr());
  }
  acc.save_state("state");
}

int main(int argc, char** argv) {
  CLI::App app("The guide's loop under accelerate's names", "accelerate");
  int64_t accumulate = 4, epochs = 3;
  app.add_option("--accumulate", accumulate, "batches that a rank accumulates in a step");
  app.add_option("--epochs", epochs, "passes over the data");
  CLI11_PARSE(app, argc, argv);
  if (!ls::engine::is_launched()) return run(accumulate, epochs), 0;
  ls::dist::init();
  run(accumulate, epochs);
  ls::dist::shutdown();
}
