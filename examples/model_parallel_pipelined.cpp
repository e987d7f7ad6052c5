// Model parallelism by hand, with the batch cut into splits: while the second device works on a split, the first device
// works on the next split.
//   LOCKSTEP_CPU_DEVICES=2 model_parallel_pipelined
// GPU operations are asynchronous, so one thread keeps two GPUs busy; virtual CPU devices take turns. For ranks,
// schedules and larger models see docs/pipeline.md.
#include <lockstep.h>

#include <iostream>

namespace ls = lockstep;

struct ToyModel : ls::nn::Layer<ToyModel> {
  ToyModel(ls::Device first, ls::Device second, int64_t split_size)
      : first(first), second(second), split_size(split_size) {
    ls::manual_seed(1);
    net1 = ls::nn::Linear({.in = 1000, .out = 10});
    net2 = ls::nn::Linear({.in = 10, .out = 5});
    net1.to(first);
    net2.to(second);
  }
  ls::Variable forward(const ls::Variable& x) {
    std::vector<ls::Variable> outputs;
    ls::Variable before;  // the first device's output for the previous split
    for (int64_t at = 0; at < x.size(0); at += split_size) {
      const ls::Variable split = x.narrow(0, at, std::min(split_size, x.size(0) - at));
      if (before.defined()) outputs.push_back(net2(before));
      before = ls::relu(net1(split.to(first))).to(second);
    }
    outputs.push_back(net2(before));
    return ls::cat(outputs);
  }
  void fields(ls::nn::Fields& f) override { f("net1", net1)("net2", net2); }

  ls::Device first, second;
  int64_t split_size;
  ls::nn::Linear net1{{.in = 1, .out = 1}}, net2{{.in = 1, .out = 1}};
};

int main() {
  const std::vector<ls::Device> devices = ls::all_devices();
  for (const int64_t split_size : {20, 8, 1}) {
    ToyModel model(devices.front(), devices.back(), split_size);
    ls::optim::SGD optimizer(model.parameters(), {.lr = 0.001});
    ls::manual_seed(2);
    const ls::Tensor inputs = ls::randn({20, 1000}), labels = ls::randn({20, 5}).to(devices.back());
    std::cout << "splits of " << split_size << ", losses";
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const ls::Variable loss = ls::mse_loss(model(inputs), labels);
      loss.backward();
      optimizer.step();
      std::cout << " " << loss.item();
    }
    std::cout << "\n";
  }
}
