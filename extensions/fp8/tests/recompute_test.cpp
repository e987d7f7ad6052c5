// Linears in fp8 inside a checkpoint: values, gradients and histories have the same bits as in the plain run.
#include <doctest/doctest.h>

#include "autograd/autocast.h"
#include "autograd/checkpoint.h"
#include "extensions/fp8/scaling.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tensor/random.h"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

/// Losses, gradients and state of each step of two micro-batches.
std::vector<std::pair<std::string, Tensor>> train(bool again) {
  manual_seed(3);
  Sequential net(Linear({.in = 16, .out = 32}), Tanh(), Linear({.in = 32, .out = 16}));
  Fp8Scaling fp8(net);
  optim::SGD sgd(net.parameters(), {.lr = 0.2});
  std::vector<std::pair<std::string, Tensor>> all;
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    std::vector<Variable> inputs, losses;
    for (int micro = 0; micro < 2; ++micro) {
      inputs.emplace_back(randn({16, 16}), true);
      const auto fn = [&net](const Variable& x) { return net(x); };
      const Autocast precision(bf16);  // one per forward: two pending micro-batches must not share converted weights
      losses.push_back(sum(square(again ? checkpoint(fn, inputs.back()) : fn(inputs.back())).to(f32)));
    }
    // both forwards ran before: each backward recomputes with the state of its own forward
    for (int micro = 0; micro < 2; ++micro) {
      losses[size_t(micro)].backward();
      all.emplace_back("loss", losses[size_t(micro)].tensor().clone());
      all.emplace_back("input", inputs[size_t(micro)].grad().clone());
    }
    for (const auto& p : net.named_parameters()) all.emplace_back(p.name, p.variable.grad().clone());
    sgd.step();
    fp8.update();
    for (const auto& [name, tensor] : net.state()) all.emplace_back(name, tensor.clone());
    for (const auto& piece : fp8.state()) all.emplace_back(piece.name + " history", piece.history.clone());
  }
  return all;
}

}  // namespace

TEST_CASE("fp8: a forward that runs twice counts once") {
  const auto plain = train(false), again = train(true);
  REQUIRE(plain.size() == again.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    CAPTURE(plain[i].first);
    CAPTURE(i);
    CHECK(equal(plain[i].second, again[i].second));
  }
}
