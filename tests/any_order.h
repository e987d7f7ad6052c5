#pragma once
// Objects that refer to each other are destroyed in any order. AddressSanitizer finds mistakes here.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "data/dataset.h"
#include "dist/process_group.h"
#include "engine/engine.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "optim/schedule.h"
#include "tensor/random.h"

namespace testing {

struct Borrowed : lockstep::nn::Layer<Borrowed> {
  lockstep::nn::Sequential body{lockstep::nn::Linear({.in = 16, .out = 32}), lockstep::nn::Tanh(),
                                lockstep::nn::Linear({.in = 32, .out = 16})};
  lockstep::nn::BatchNorm1d norm{{.channels = 16}};
  lockstep::Variable forward(const lockstep::Variable& x) { return norm(body(x)); }
  void fields(lockstep::nn::Fields& f) override { f("body", body)("norm", norm); }
};
inline lockstep::Variable borrowed_loss(const lockstep::Variable& y) { return sum(square(y)); }
inline lockstep::Variable borrowed_input() { return lockstep::Variable(lockstep::randn({16, 16})); }
inline lockstep::data::TensorDataset borrowed_samples() {
  return {lockstep::randn({32, 16}), lockstep::randn({32, 16})};
}
constexpr auto nobody = [](const std::string&) {};

/// Owners of objects that refer to each other.
using Owners = std::vector<std::shared_ptr<void>>;
struct Order {
  const char* name;
  int ranks;
  std::function<Owners(int rank)> make;
};

/// One step of an engine, then a backward without a step.
inline Owners with_engine(const std::string& config) {
  using namespace lockstep;
  auto net = std::make_shared<Borrowed>();
  auto adamw = std::make_shared<optim::AdamW>(net->parameters(), optim::AdamWOptions{});
  auto steps = std::make_shared<optim::WarmupLR>(*adamw, optim::WarmupLR::Options{});
  auto e = std::make_shared<engine::Engine<Borrowed>>(
      *net,
      engine::InitializeArgs{.optimizer = adamw.get(), .lr_scheduler = steps.get(), .config = config, .log = nobody});
  e->backward(borrowed_loss((*e)(borrowed_input())));
  e->step();
  auto loss = std::make_shared<Variable>(borrowed_loss((*e)(borrowed_input())));
  e->backward(*loss);
  return {net, adamw, steps, e, loss};
}

/// Makes the objects of each order once per permutation of their owners, and destroys them by it.
inline void destroy_in_every_order(const std::vector<Order>& orders) {
  for (const Order& order : orders) {
    CAPTURE(order.name);
    lockstep::dist::spawn(order.ranks,
                          [&](int rank) {
                            lockstep::manual_seed(1);
                            std::vector<size_t> places(order.make(rank).size());
                            std::iota(places.begin(), places.end(), 0);
                            do {
                              Owners all = order.make(rank);
                              for (const size_t i : places) all[i].reset();
                            } while (std::next_permutation(places.begin(), places.end()));
                          },
                          {.timeout = lockstep::dist::Seconds(60)});
  }
}

}  // namespace testing
