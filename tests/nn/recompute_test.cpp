// Layers with state inside a checkpoint: values, gradients and state have the same bits as in the plain run.
#include <doctest/doctest.h>

#include <memory>

#include "autograd/checkpoint.h"
#include "nn/nn.h"
#include "optim/optim.h"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

/// A custom layer with state: a running mean that is overwritten, and a counter.
struct Standardize : Layer<Standardize> {
  Tensor mean = zeros({16}), calls = zeros({}, {.dtype = i64});
  int64_t counted = 0;
  Variable forward(const Variable& x) {
    if (is_training()) {
      mean.copy_(lerp(mean, lockstep::mean(x.tensor(), {0}), 0.5));
      add_scalar_(calls, 1);
      if (!is_recomputing()) ++counted;
    }
    return x - Variable(mean);
  }
  void fields(Fields& f) override { f("mean", mean)("calls", calls); }
};

struct Row {
  const char* name;
  std::function<Sequential()> make;
  Shape shape;
};
const std::vector<Row> rows = {
    {"BatchNorm1d",
     [] { return Sequential(Linear({.in = 16, .out = 16}), BatchNorm1d({.channels = 16}), ReLU()); },
     {16, 16}},
    {"BatchNorm1d, plain average",
     [] { return Sequential(Linear({.in = 16, .out = 16}), BatchNorm1d({.channels = 16, .momentum = {}}), Tanh()); },
     {16, 16}},
    {"BatchNorm2d",
     [] {
       return Sequential(Conv2d({.in = 2, .out = 3, .kernel = 3}), BatchNorm2d({.channels = 3}), Dropout({.p = 0.2}));
     },
     {4, 2, 6, 6}},
    {"InstanceNorm2d",
     [] { return Sequential(InstanceNorm2d({.channels = 2, .affine = true, .track = true})); },
     {4, 2, 6, 6}},
    {"SpectralNorm", [] { return Sequential(spectral_norm(Linear({.in = 16, .out = 16})), Tanh()); }, {16, 16}},
    {"SpectralNorm, 3 iterations",
     [] { return Sequential(spectral_norm(Conv2d({.in = 2, .out = 3, .kernel = 3}), {.iterations = 3}), Tanh()); },
     {4, 2, 6, 6}},
    {"WeightNorm", [] { return Sequential(weight_norm(Linear({.in = 16, .out = 16})), Tanh()); }, {16, 16}},
    {"a user's own", [] { return Sequential(Linear({.in = 16, .out = 16}), Standardize(), Tanh()); }, {16, 16}},
};

/// Losses, gradients and state of each step of two micro-batches.
std::vector<std::pair<std::string, Tensor>> train(const Row& row, bool again) {
  manual_seed(3);
  Sequential net = row.make();
  optim::SGD sgd(net.parameters(), {.lr = 0.2});
  std::vector<std::pair<std::string, Tensor>> all;
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    std::vector<Variable> inputs, losses;
    for (int micro = 0; micro < 2; ++micro) {
      inputs.emplace_back(randn(row.shape), true);
      const auto fn = [&net](const Variable& x) { return net(x); };
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
    for (const auto& [name, tensor] : net.state()) all.emplace_back(name, tensor.clone());
  }
  for (const auto& [name, module] : net.named_modules())
    if (auto* const own = dynamic_cast<Standardize*>(module)) CHECK(own->counted == 6);
  return all;
}

}  // namespace

TEST_CASE("layers with state count a forward that runs twice once") {
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const auto plain = train(row, false), again = train(row, true);
    REQUIRE(plain.size() == again.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      CAPTURE(plain[i].first);
      CAPTURE(i);
      CHECK(equal(plain[i].second, again[i].second));
    }
  }
}
