// A Python script for DeepSpeed, in C++: trains an image classifier in f16 with ZeRO 3; parameters and optimizer are
// offloaded to host memory.
//
//   lockstep run -n 2 -- guide_a_deepspeed --deepspeed --deepspeed_config deepspeed_config.json
//
// Images are smaller and fewer than in the Python script (a million of 512 x 512), so that the program finishes soon.
#include <lockstep.h>

#include <CLI/CLI.hpp>
#include <iostream>

namespace ls = lockstep;

struct MyClassifier : ls::nn::Layer<MyClassifier> {
  MyClassifier(int64_t channels, int64_t classes, int64_t ch_multi)
      : conv1({.in = channels, .out = ch_multi, .stride = 2, .padding = 1}),
        conv2({.in = ch_multi, .out = 2 * ch_multi, .stride = 2, .padding = 1}),
        head({.in = 2 * ch_multi, .out = classes}) {}
  ls::Variable forward(const ls::Variable& x) { return head(ls::mean(ls::relu(conv2(ls::relu(conv1(x)))), {2, 3})); }
  void fields(ls::nn::Fields& f) override { f("conv1", conv1)("conv2", conv2)("head", head); }

  ls::nn::Conv2d conv1, conv2;
  ls::nn::Linear head;
};

/// Noise images in which the brightness of one channel encodes the class.
struct MyDataset : ls::data::Dataset<ls::data::Example> {
  MyDataset(ls::Shape shape_, int64_t classes_, int64_t sample_count_)
      : shape(std::move(shape_)), classes(classes_), sample_count(sample_count_) {}
  int64_t size() const override { return sample_count; }
  ls::data::Example get(int64_t index) const override {
    const int64_t label = index % classes;
    ls::Tensor image = ls::randn(shape);
    image.select(0, label % shape[0]).copy_(ls::add_scalar(image.select(0, label % shape[0]), 1 + double(label)));
    return {image, ls::Tensor::from(std::vector<int64_t>{label}, {})};
  }
  ls::Shape shape;
  int64_t classes, sample_count;
};

void run(const ls::engine::Arguments& args, const std::string& checkpoints) {
  ls::manual_seed(1);
  MyClassifier model(3, 6, 16);
  auto [engine, optimizer, training_dataloader, lr_scheduler] = ls::engine::initialize(
      model, {.training_data = std::make_shared<MyDataset>(ls::Shape{3, 16, 16}, 6, 48), .args = &args});
  const bool resumed = engine.load_checkpoint(checkpoints).has_value();  // without a checkpoint: a warning

  engine.train();
  for (auto& [data, label] : *training_dataloader) {
    const ls::Variable outputs =
        engine(data.to(engine.device()).to(ls::f16));  // no zero_grad(): step() clears gradients
    const ls::Variable loss = ls::cross_entropy(outputs, label.to(engine.device()).reshape({-1}));
    engine.backward(loss);
    engine.step();
  }
  engine.save_checkpoint(checkpoints);
  engine.wait_for_checkpoint();
  if (engine.global_rank() == 0)
    std::cout << (resumed ? "resumed" : "started") << ", step " << engine.global_steps() << ", loss of the last one "
              << engine.train_loss() << "\n";
}

int main(int argc, char** argv) {
  CLI::App app("The guide's training by DeepSpeed", "guide_a_deepspeed");
  ls::engine::Arguments args;
  std::string checkpoints = "data/checkpoints/MyClassifier";
  ls::engine::add_config_arguments(app, args);
  app.add_option("--checkpoints", checkpoints, "folder to resume from and save to")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  ls::engine::init_distributed();
  run(args, checkpoints);
  ls::dist::shutdown();
}
