// Section 6 of the guide: training in f16 with a dynamic loss scale, by the loop of section 4.3.
#include <lockstep.h>

#include <iostream>

namespace ls = lockstep;

struct SimpleModel : ls::nn::Layer<SimpleModel> {
  ls::nn::Linear linear1{{.in = 10, .out = 20}};
  ls::nn::ReLU relu;
  ls::nn::Linear linear2{{.in = 20, .out = 1}};
  ls::Variable forward(const ls::Variable& x) { return linear2(relu(linear1(x))); }
  void fields(ls::nn::Fields& f) override { f("linear1", linear1)("relu", relu)("linear2", linear2); }
};

const char* const ds_config = R"({
  "train_micro_batch_size_per_gpu": 16,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
  "fp16": {"enabled": true, "auto_cast": true, "loss_scale": 0, "initial_scale_power": 24, "loss_scale_window": 20,
           "hysteresis": 2, "min_loss_scale": 1},
  "zero_optimization": {"stage": 2},
  "gradient_clipping": 1.0
})";

int main() {
  ls::manual_seed(1234);
  SimpleModel model;
  auto [model_engine, optimizer, _, lr_scheduler] = ls::engine::initialize(model, {.config = ds_config});

  const ls::Tensor inputs = ls::randn({128, 10});
  const ls::Tensor labels = ls::sin(ls::sum(inputs, {1}, true));
  const ls::data::TensorDataset dataset(inputs, labels);
  ls::data::DataLoader train_dataloader(dataset, {.batch_size = 16, .shuffle = true});

  double first = 0, last = 0;
  for (int epoch = 0; epoch < 10; ++epoch) {
    double sum = 0;
    for (auto& [x, y] : train_dataloader) {
      const ls::Variable outputs = model_engine(x);
      const ls::Variable loss = ls::mse_loss(outputs.to(ls::f32), y);
      model_engine.backward(loss);
      model_engine.step();
      sum += loss.item();
    }
    last = sum / double(train_dataloader.size());
    if (epoch == 0) first = last;
    std::cout << "epoch " << epoch + 1 << ": loss " << last << ", loss scale " << model_engine.loss_scale()
              << ", skipped steps " << model_engine.skipped_steps() << " of " << model_engine.global_steps() << "\n";
  }
  return last < first && model_engine.skipped_steps() > 0 ? 0 : 1;
}
