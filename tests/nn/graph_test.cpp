// Training steps recorded as a graph end with the same bits as eager steps. Runs on the default device of the tests.
#include <doctest/doctest.h>

#include "nn/container.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "optim/optim.h"
#include "tensor/graph.h"
#include "tensor/ops.h"
#include "tensor/random.h"

using namespace lockstep;

namespace {

Tensor batch(int step) { return arange(0, 20, 1, {.dtype = f32}).view({4, 5}) * 0.1 - double(step) * 0.3; }

/// The losses of five steps, and the weights after them. replays: forward and backward are replayed from a graph.
std::pair<std::vector<double>, Tensor> train(bool replays) {
  nn::Linear first({.in = 5, .out = 16}), second({.in = 16, .out = 3});
  nn::LayerNorm norm({.shape = {16}});
  std::vector<Variable> parameters;
  for (nn::Module* m : std::initializer_list<nn::Module*>{&first, &norm, &second})
    for (const Variable& p : m->parameters()) parameters.push_back(p);
  manual_seed(3);
  for (const Variable& p : parameters) normal_(p.tensor(), 0, 0.5);
  optim::AdamW optimizer(parameters, {.lr = 0.05});
  const Tensor target = full({4}, 1, {.dtype = i64}), x = batch(0).clone();
  Tensor loss;
  const auto passes = [&] {
    optimizer.zero_grad(true);
    const Variable made = cross_entropy(second(norm(first.forward(x, Activation::gelu_tanh))), target);
    made.backward();
    loss = made.tensor();
  };
  Graph graph(default_device());
  if (replays) graph.capture(passes);
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    x.copy_(batch(step));
    replays ? graph.replay() : passes();
    optimizer.step();
    losses.push_back(loss.item());
  }
  return {losses, first.weight.tensor().to(cpu)};
}

}  // namespace

TEST_CASE("graph: a replayed training step is bit-identical to the step itself") {
  const auto [eager, weights] = train(false);
  const auto [replayed, replayed_weights] = train(true);
  CHECK(eager == replayed);
  CHECK(eager[4] < eager[0]);
  CHECK(equal(weights, replayed_weights));
}
