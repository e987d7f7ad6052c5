// Classifies points on two moons with a small network: a complete program that uses an installed Lockstep.
//   g++ -std=c++20 main.cpp -o example $(pkg-config --cflags --libs lockstep)
#include <lockstep.h>

#include <iostream>
#include <numbers>

namespace ls = lockstep;

int main() {
  ls::manual_seed(1);
  const ls::Tensor number = ls::arange(256).to(ls::f32), side = ls::floor(number * (1.0 / 128));  // half 0, half 1
  const ls::Tensor angle = ls::rand({256}) * std::numbers::pi, sign = side * -2.0 + 1.0;
  const ls::Tensor x =
      ls::stack({ls::cos(angle) * sign + side, ls::sin(angle) * sign + side * 0.5}, 1) + ls::randn({256, 2}) * 0.05;
  const ls::Tensor y = side.to(ls::i64);

  ls::nn::Sequential net(ls::nn::Linear({.in = 2, .out = 32}), ls::nn::Tanh(), ls::nn::Linear({.in = 32, .out = 2}));
  ls::optim::AdamW opt(net.parameters(), {.lr = 0.02});
  double loss = 0;
  for (int step = 0; step < 400; ++step) {
    const ls::Variable error = ls::cross_entropy(net(x), y);
    opt.zero_grad();
    error.backward();
    opt.step();
    loss = error.item();
    if (step % 100 == 0) std::cout << "step " << step << " loss " << loss << "\n";
  }
  std::cout << "loss " << loss << "\n";
}
