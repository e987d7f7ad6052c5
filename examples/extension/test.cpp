// Tests the extension on the CPU and, if there is one, on a CUDA device.
#include <iostream>

#include "signs.h"

namespace ls = lockstep;

namespace {

void check_steps(ls::Device device) {
  for (const ls::DType dtype : {ls::f32, ls::f64, ls::bf16}) {
    const ls::TensorOptions where{.dtype = dtype, .device = device};
    ls::Variable w(ls::full({3, 1000}, 1, where), true);
    signs::Signum optimizer({w}, {.lr = 0.25, .momentum = 0.5});
    w.grad() = ls::full({3, 1000}, -2, where);
    optimizer.step();  // m = 0.5 * -2 = -1, w = 1 + 0.25
    w.grad() = ls::full({3, 1000}, 8, where);
    optimizer.step(0.5);  // m = 0.5 * -1 + 0.5 * 8 * 0.5 = 1.5, w = 1.25 - 0.25
    LOCKSTEP_CHECK(ls::equal(w.tensor(), ls::ones({3, 1000}, where)), dtype, ": expected ones, got ", w.tensor());
    const ls::Tensor m = optimizer.state_of(w).tensors.at("momentum");
    LOCKSTEP_CHECK(m.device() == device && ls::equal(m, ls::full_like(m, 1.5)), dtype, ": expected 1.5, got ", m);
  }
}

void check_votes() {
  ls::dist::spawn(3, [](int rank) {
    ls::nn::Linear net({.in = 2, .out = 1, .bias = false});
    ls::parallel::DistributedDataParallel ddp(net, {.hook = signs::majority_vote()});
    const float some[3] = {5, -1, -1};
    ls::sum(ddp(ls::Variable(ls::Tensor::from<float>({some[rank], 0}, {1, 2})))).backward();
    LOCKSTEP_CHECK(ls::equal(net.weight.grad(), ls::Tensor::from<float>({-1, 0}, {1, 2})), "expected {-1, 0}, got ",
                   net.weight.grad());
  });
}

void check_weights(ls::Device device) {
  ls::nn::Sequential net(ls::nn::Linear({.in = 16, .out = 8}));
  net.to(device);
  auto& layer = dynamic_cast<ls::nn::Linear&>(*net.children().front().second);
  const ls::Tensor w = layer.weight.tensor();
  const ls::Tensor close = ls::sign(w) * ls::mean(ls::abs(w), {1}, true);
  signs::keep_signs(layer);
  ls::Variable x(ls::randn({4, 16}, {.device = device}), true);
  const ls::Variable y = net(x);
  LOCKSTEP_CHECK(ls::allclose(y.tensor(), ls::linear(x.tensor(), close, layer.bias.tensor())),
                 "expected linear(x, close)");
  ls::sum(y).backward();
  LOCKSTEP_CHECK(ls::allclose(x.grad(), ls::matmul(ls::ones_like(y.tensor()), close)), "expected the gradient of it");
  const auto [name, signs] = net.state().front();
  LOCKSTEP_CHECK(name == "0.weight.signs" && signs.shape() == ls::Shape({8, 2}), "expected a bit for each weight");
}

}  // namespace

int main() {
  try {
    ls::manual_seed(1);
    std::vector<ls::Device> devices{ls::cpu};
    if (ls::device_count(ls::Device::Type::cuda) > 0) devices.push_back({ls::Device::Type::cuda, 0});
    for (const ls::Device device : devices) {
      check_steps(device);
      check_weights(device);
      std::cout << device << ": right\n";
    }
    check_votes();
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
