// Section 9 of the guide: save_checkpoint and load_checkpoint with a client state, and full f32 weights in one file.
#include <lockstep.h>
#include <lockstep/checkpoint_tools.h>

#include <filesystem>
#include <iostream>

namespace ls = lockstep;

struct SimpleModel : ls::nn::Layer<SimpleModel> {
  ls::nn::Linear linear1{{.in = 10, .out = 64}}, linear2{{.in = 64, .out = 1}};
  ls::Variable forward(const ls::Variable& x) { return linear2(ls::relu(linear1(x))); }
  void fields(ls::nn::Fields& f) override { f("linear1", linear1)("linear2", linear2); }
};

const char* const ds_config = R"({
  "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 5}},
  "bf16": {"enabled": true, "auto_cast": true},
  "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": true}
})";

// Trains epochs [begin, end), from the checkpoint in "checkpoints" if there is one. Returns the last loss.
double train(int ranks, int end) {
  double last = 0;
  ls::dist::spawn(ranks, [&](int rank) {
    ls::manual_seed(1234);
    SimpleModel model;
    const ls::Tensor x = ls::randn({64, 10});
    const ls::data::TensorDataset dataset(x, ls::sin(ls::sum(x, {1}, true)));
    auto [model_engine, optimizer, loader, lr_scheduler] = ls::engine::initialize(
        model, {.training_data = ls::data::share(dataset), .config = ds_config, .log = [](const std::string&) {}});

    // load_path, client_state = model_engine.load_checkpoint(load_dir)
    int64_t epoch = 0;
    if (const auto loaded = model_engine.load_checkpoint("checkpoints")) {
      epoch = loaded->client_state.at("epoch").as_int() + 1;
      if (rank == 0)
        std::cout << "resumed " << loaded->path << ", epoch " << epoch << ", lr " << model_engine.get_lr()[0]
                  << ", note: " << loaded->client_state.at("note").as_string() << "\n";
    }
    for (; epoch < end; ++epoch) {
      for (auto& [input, target] : *loader) {
        model_engine.backward(ls::mse_loss(model_engine(input).to(ls::f32), target));
        model_engine.step();
      }
      if (rank == 0) std::cout << "epoch " << epoch << ": loss " << model_engine.train_loss() << "\n";
      const ls::data::Json::Object client_state{{"epoch", epoch},
                                                {"note", "saved by " + std::to_string(ranks) + " ranks"}};
      model_engine.save_checkpoint("checkpoints", {.client_state = client_state});
    }
    model_engine.save_16bit_model("checkpoints_16bit");
    if (rank == 0) last = model_engine.train_loss();
  });
  return last;
}

int main() {
  std::filesystem::remove_all("checkpoints");
  const double straight = train(1, 12);
  std::filesystem::remove_all("checkpoints");
  train(2, 6);
  const double resumed = train(4, 12);
  std::cout << "12 epochs: loss " << straight << "; 6 on 2 ranks and 6 on 4 ranks: " << resumed << "\n";

  // convert_zero_checkpoint_to_fp32_state_dict("checkpoints", "model.safetensors"): the f32 master weights
  auto opened =
      ls::checkpoints::open_checkpoint("checkpoints", "", [](const std::string& w) { std::cerr << w << "\n"; });
  ls::checkpoints::export_checkpoint(opened, "model.safetensors");
  SimpleModel restored;
  const auto file = ls::data::SafeTensors::open("model.safetensors");
  ls::nn::State state;
  for (const std::string& name : file.names()) state.emplace_back(name, file.tensor(name));
  restored.load_state(state);
  const ls::Tensor x = ls::randn({256, 10});
  const double error = ls::mse_loss(restored(x), ls::sin(ls::sum(x, {1}, true))).item();
  std::cout << "error of the full weights on new data: " << error << "\n";
  return straight == resumed && error < 1 ? 0 : 1;
}
