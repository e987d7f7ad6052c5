// A Python pipeline script for DeepSpeed, in C++: five layers, cut into as many stages as pipeline_config.json says,
// one per rank.
//
//   lockstep run -n 2 -- pipeline --deepspeed_config pipeline_config.json
//
// The Python script differs in three ways: it passes the parameters of the uncut model to the optimizer (here the
// engine makes the optimizer from each rank's parameters), it does not set the number of stages, and it writes
// "micro_batch_size" for train_micro_batch_size_per_gpu.
#include <lockstep.h>
#include <lockstep/parallel.h>

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

namespace ls = lockstep;
using ls::pipeline::layer;

/// The layers of a stage are built on its rank only.
ls::engine::PipelineModule my_pipeline_model() {
  return {.layers = {layer<ls::nn::Linear>({.in = 10, .out = 20}), layer<ls::nn::ReLU>(),
                     layer<ls::nn::Linear>({.in = 20, .out = 30}), layer<ls::nn::ReLU>(),
                     layer<ls::nn::Linear>({.in = 30, .out = 1})},
          .loss_fn = [](const ls::pipeline::Values& outputs, const std::vector<ls::Tensor>& labels) {
            return ls::mse_loss(outputs[0].to(ls::f32), labels[0]);
          }};
}

int run(const ls::engine::Arguments& args, int64_t steps) {
  ls::manual_seed(1234);
  const ls::Tensor inputs = ls::randn({96, 10});
  const ls::data::TensorDataset dataset(inputs, ls::sum(inputs, {1}, true));

  auto engine = ls::engine::initialize(my_pipeline_model(), {.training_data = ls::data::share(dataset), .args = &args});
  std::cout << ls::str("Rank ", engine.global_rank(), ": stage ", engine.pipeline().stage(), " of ", engine.plan().pp,
                       ", ", engine.pipeline().module().parameter_count(), " parameters\n")
            << std::flush;

  for (int64_t step = 1; step <= steps; ++step) {
    const double loss = engine.train_batch();  // runs all micro-batches and the update; every rank gets the loss
    if (engine.global_rank() == 0 && step % 10 == 0)
      std::cout << "Step " << step << ", Loss: " << std::setprecision(12) << loss << std::endl;
  }
  engine.save_checkpoint("pipeline_checkpoint");
  engine.wait_for_checkpoint();
  return 0;
}

int main(int argc, char** argv) {
  CLI::App app("The pipeline of the guide", "pipeline");
  ls::engine::Arguments args{.deepspeed_config = "pipeline_config.json"};
  int64_t steps = 40;
  ls::engine::add_config_arguments(app, args);
  app.add_option("--steps", steps, "optimizer steps");
  CLI11_PARSE(app, argc, argv);
  ls::engine::init_distributed();
  run(args, steps);
  ls::dist::shutdown();
}
