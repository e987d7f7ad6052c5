// Model parallelism by hand, for a model that does not fit on one device: layers are on different devices and run one
// after another.
//   LOCKSTEP_CPU_DEVICES=2 model_parallel
#include <lockstep.h>

#include <iostream>

namespace ls = lockstep;

struct ToyModel : ls::nn::Layer<ToyModel> {
  ToyModel(ls::Device first, ls::Device second) : first(first), second(second) {
    net1.to(first);
    net2.to(second);
  }
  ls::Variable forward(const ls::Variable& x) {
    const ls::Variable hidden = net1(x.to(first));
    return net2(ls::relu(hidden.to(second)));  // .to() is recorded on the tape, so gradients move back
  }
  void fields(ls::nn::Fields& f) override { f("net1", net1)("net2", net2); }

  ls::Device first, second;
  ls::nn::Linear net1{{.in = 10000, .out = 10}}, net2{{.in = 10, .out = 5}};
};

int main() {
  ls::manual_seed(1);
  const std::vector<ls::Device> devices = ls::all_devices();
  ToyModel model(devices.front(), devices.back());
  for (auto& p : model.named_parameters())
    std::cout << p.name << "\t" << p.variable.shape() << "\t" << p.variable.device() << "\n";

  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.001});
  const ls::Tensor inputs = ls::randn({20, 10000}), labels = ls::randn({20, 5});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const ls::Variable outputs = model(inputs);
    try {
      ls::mse_loss(outputs, labels);
      if (devices.size() > 1) return 1;
    } catch (const ls::Error& error) {  // expected: the target must be on the output's device
      if (step == 0) std::cout << error.what() << "\n";
    }
    const ls::Variable loss = ls::mse_loss(outputs, labels.to(outputs.device()));
    loss.backward();
    optimizer.step();
    std::cout << "step " << step << " loss " << loss.item() << " on " << outputs.device() << "\n";
  }
}
