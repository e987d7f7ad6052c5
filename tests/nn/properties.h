#pragma once
// What holds for every layer, also for those of extensions.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/activation_checkpoint.h"
#include "autograd/autocast.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/messages.h"

namespace testing {

using namespace lockstep;

/// Checks that a module that is built empty takes no memory and no random numbers, and that filling it in any order
/// gives the bits of plain construction, in every dtype.
template <class Make> void check_built_empty(const Make& make) {
  for (const DType dtype : {f32, bf16, f64}) {
    manual_seed(3);
    auto plain = make();
    plain.to(dtype);
    const nn::State expected = plain.state();
    const RandomState random = random_state();
    std::optional<nn::BuildEmpty> scope(std::in_place);
    const int64_t before = memory_report().category[int(Memory::parameter)].current;
    manual_seed(3);
    auto made = make();
    made.to(dtype);
    CHECK(memory_report().category[int(Memory::parameter)].current == before);
    CHECK(random_state() == random);
    scope.reset();
    auto all = made.named_parameters();
    std::reverse(all.begin(), all.end());
    for (auto& p : all) {
      CHECK((nn::is_built_empty(p.variable) && p.variable.dtype() == dtype));
      CHECK_ERROR(sum(p.variable.tensor()), "a model that was built empty");
      nn::fill(p.variable);
      nn::fill(p.variable);  // no effect: it has values already
    }
    CHECK(random_state() == random);
    const nn::State state = made.state();
    REQUIRE(state.size() == expected.size());
    for (size_t i = 0; i < state.size(); ++i) CHECK_MESSAGE(equal(state[i].second, expected[i].second), state[i].first);
  }
}

/// The losses of the first and the last of `steps` training steps.
inline std::pair<double, double> first_and_last(optim::Optimizer& optimizer, int steps,
                                                const std::function<Variable()>& loss_of) {
  std::pair<double, double> losses;
  for (int step = 0; step < steps; ++step) {
    const Variable loss = loss_of();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    (step ? losses.second : losses.first) = loss.item();
  }
  return losses;
}

/// Values by name.
using NamedValues = std::vector<std::pair<std::string, Tensor>>;
/// Is called behind each step, and may add values.
using AfterStep = std::function<void(int step, NamedValues& values)>;
/// How check_recomputed() trains.
struct Recomputed {
  std::function<nn::Sequential()> make;
  Shape shape;
  std::optional<DType> autocast = {};
  std::function<AfterStep(nn::Sequential& net)> begin = [](nn::Sequential&) { return AfterStep(); };
};
/// Losses, gradients and state of each step of two micro-batches; again: forwards are recomputed.
inline NamedValues train_recomputed(const Recomputed& setup, bool again) {
  manual_seed(3);
  nn::Sequential net = setup.make();
  const AfterStep after_step = setup.begin(net);
  optim::SGD sgd(net.parameters(), {.lr = 0.2});
  NamedValues all;
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    std::vector<Variable> inputs, losses;
    for (int micro = 0; micro < 2; ++micro) {
      inputs.emplace_back(randn(setup.shape), true);
      const auto fn = [&net](const Variable& x) { return net(x); };
      std::optional<Autocast> precision;  // one per forward: pending micro-batches must not share converted weights
      if (setup.autocast) precision.emplace(*setup.autocast);
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
    if (after_step) after_step(step, all);
    for (const auto& [name, tensor] : net.state()) all.emplace_back(name, tensor.clone());
  }
  return all;
}
/// Checks that training has the same bits with and without recomputed forwards.
inline void check_recomputed(const Recomputed& setup) {
  const NamedValues plain = train_recomputed(setup, false), again = train_recomputed(setup, true);
  REQUIRE(plain.size() == again.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    CAPTURE(plain[i].first);
    CAPTURE(i);
    CHECK(equal(plain[i].second, again[i].second));
  }
}

}  // namespace testing
