// Sections 5.1 and 5.2 of the guide: ZeRO 3 with optimizer state and parameters in host memory, then in files.
#include <lockstep.h>

#include <filesystem>
#include <iostream>
#include <string>

namespace ls = lockstep;

struct Mlp : ls::nn::Layer<Mlp> {
  ls::nn::Linear up{{.in = 64, .out = 512}}, middle{{.in = 512, .out = 512}}, down{{.in = 512, .out = 10}};
  ls::Variable forward(const ls::Variable& x) { return down(ls::gelu(middle(ls::gelu(up(x))))); }
  void fields(ls::nn::Fields& f) override { f("up", up)("middle", middle)("down", down); }
};

std::string config(const std::string& device) {
  return R"({
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}},
    "bf16": {"enabled": true, "auto_cast": true},
    "gradient_clipping": 1.0,
    "zero_optimization": {
      "stage": 3,
      "offload_optimizer": {"device": ")" +
         device + R"(", "nvme_path": "nvme", "pin_memory": true},
      "offload_param": {"device": ")" +
         device + R"(", "nvme_path": "nvme", "pin_memory": true},
      "overlap_comm": true,
      "sub_group_size": 65536,
      "stage3_param_persistence_threshold": 1000
    },
    "memory_breakdown": true
  })";
}

double train(const std::string& device) {
  double last = 0;
  ls::dist::spawn(2, [&](int rank) {  // two ranks as threads; under the launcher: ls::dist::init()
    ls::manual_seed(1234);
    Mlp model;
    auto engine = ls::engine::initialize(model, config(device));
    const ls::Tensor centers = ls::randn({10, 64});
    for (int step = 0; step < 30; ++step) {
      ls::set_random_step(uint64_t(step), uint64_t(rank));
      const ls::Tensor y = ls::randint(0, 10, {engine.train_micro_batch_size_per_gpu()});
      const ls::Tensor x = ls::index_select(centers, 0, y) + ls::randn({y.size(0), 64});
      const ls::Variable loss = ls::cross_entropy(engine(x), y);
      engine.backward(loss);
      engine.step();
      if (rank == 0 && step % 10 == 9)
        std::cout << device << " step " << step + 1 << " loss " << engine.train_loss() << "\n";
    }
    if (rank == 0) {
      std::cout << ls::memory_report();
      last = engine.train_loss();
    }
  });
  return last;
}

int main() {
  std::filesystem::create_directories("nvme");
  const double none = train("none"), cpu = train("cpu"), nvme = train("nvme");
  std::cout << "losses " << none << " " << cpu << " " << nvme << "\n";
  return none < 0.5 && none == cpu && cpu == nvme ? 0 : 1;
}
