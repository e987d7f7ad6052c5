#pragma once
// Shared by tests that train layers under DDP and every stage of ZeRO: a model around a layer, its training, and the
// check that all plans give the same bits.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/variable.h"
#include "nn/nn.h"
#include "parallel/activation_checkpoints.h"
#include "tests/zero/util.h"

namespace testing {

using zero::ZeroOptions;

/// A layer between two others: the head gets run(layer, x), of shape (4, width), where x is (5, 4, 6).
template <class L> struct Between : nn::Layer<Between<L>> {
  using Run = std::function<Variable(L& layer, const Variable& x)>;
  nn::Linear in = linear(6, 6);
  L layer;
  nn::Linear head;
  Run run;
  Between(L made, int64_t width, Run runner) : layer(std::move(made)), head(linear(width, 3)), run(std::move(runner)) {}
  Variable forward(const Variable& x) { return head(run(layer, in(x))); }
  void fields(nn::Fields& f) override { f("in", in)("layer", layer)("head", head); }
};
/// A Between whose layer is make().
template <class Make, class Run> MakeModel between(Make make, int64_t width, Run run) {
  using L = decltype(make());
  return [=] { return std::make_unique<Between<L>>(make(), width, run); };
}
/// A layer of sequences (5, 4, 6), whose results are averaged over time.
template <class L> MakeModel of_steps(const typename L::Options& o, int64_t width) {
  return between([=] { return L(o); }, width, [](L& layer, const Variable& x) { return mean(layer(x), {0}); });
}
template <class Make> MakeModel of_channels_made(Make make, const Shape& shape, int64_t width) {
  return between(make, width, [=](auto& layer, const Variable& x) {
    const Variable y = layer(x.permute({1, 2, 0}).reshape(shape));
    return mean(y.reshape({4, y.size(1), y.numel() / 4 / y.size(1)}), {2});
  });
}
template <class L> MakeModel of_channels(const typename L::Options& o, const Shape& shape, int64_t width) {
  return of_channels_made([=] { return L(o); }, shape, width);
}

struct LayersPlan {
  MakeModel make;
  int ranks = 1;
  std::optional<ZeroOptions> options = {};
  bool ddp = false, wrap = false;
  bool penalty = false;  ///< true: gradient penalty on the sum of outputs, as for a WGAN's critic
};

inline Tensors train_layers(const LayersPlan& plan) {
  ZeroPlan of{.ranks = plan.ranks, .accumulation = 4 / plan.ranks, .options = plan.options, .steps = 3};
  of.device = [](int) { return default_device(); };
  if (plan.ddp) of.ddp.emplace();
  of.model = [&] {
    std::unique_ptr<nn::Module> model = plan.make();
    if (plan.wrap) parallel::ActivationCheckpoints().wrap_blocks(*model);
    return model;
  };
  of.loss = [&](nn::Module&, const Call& call, int step, int64_t micro) {
    manual_seed(99);
    set_random_step(1000 + uint64_t(step), uint64_t(micro));
    const Variable x(randn({5, 4, 6}), plan.penalty);
    const Tensor y = randint(0, 3, {4});
    const Variable scores = call(x), loss = cross_entropy(scores, y);
    if (!plan.penalty) return loss;
    const Variable slope = grad(sum(tanh(scores)), {x}, {.create_graph = true})[0];
    return loss + mean(square(norm(slope.reshape({20, 6}), {1}) - 1.0));
  };
  return train(of);
}

/// Checks that two ranks give the bits of one: under DDP, in every stage, and when parameters are released immediately.
/// blocks: also with its blocks checkpointed.
inline void check_same_bits(const MakeModel& make, bool blocks = false) {
  const Tensors one = train_layers({.make = make});
  if (blocks) CHECK(differing(one, train_layers({.make = make, .wrap = true})) == "");
  CHECK(differing(one, train_layers({.make = make, .ranks = 2, .ddp = true})) == "");
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    const ZeroOptions options{.stage = stage, .param_persistence_threshold = 0};
    CHECK(differing(one, train_layers({.make = make, .ranks = 2, .options = options})) == "");
  }
  const ZeroOptions small{.stage = 3, .param_persistence_threshold = 0, .max_live_parameters = 1};
  CHECK(differing(one, train_layers({.make = make, .ranks = 2, .options = small, .wrap = blocks})) == "");
}

/// The same for each of several models.
inline void check_each_same_bits(const std::vector<std::pair<std::string, MakeModel>>& models, bool blocks = false) {
  for (const auto& [name, make] : models) {
    CAPTURE(name);
    check_same_bits(make, blocks);
  }
}

/// Checks that a penalty of a gradient gives two ranks the bits of one under DDP and in stages 1 and 2, and that stage
/// 3 refuses it.
inline void check_penalty(const MakeModel& make) {
  const Tensors one = train_layers({.make = make, .penalty = true});
  CHECK(differing(one, train_layers({.make = make})) != "");
  CHECK(differing(one, train_layers({.make = make, .ranks = 2, .ddp = true, .penalty = true})) == "");
  for (const int stage : {1, 2}) {
    const ZeroOptions options{.stage = stage};
    CHECK(differing(one, train_layers({.make = make, .ranks = 2, .options = options, .penalty = true})) == "");
  }
  const ZeroOptions third{.stage = 3, .param_persistence_threshold = 0};
  CHECK_THROWS_WITH_AS(train_layers({.make = make, .ranks = 1, .options = third, .penalty = true}),
                       doctest::Contains("use stage 2 or below for losses that contain gradients"), Error);
}

}  // namespace testing
