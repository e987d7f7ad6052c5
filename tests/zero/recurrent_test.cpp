// Modules whose forward gives several values: an LSTM under DDP and every stage of ZeRO, also checkpointed, whose
// gradients come by its output or by its last states alone.
#include <doctest/doctest.h>

#include "nn/container.h"
#include "nn/recurrent.h"
#include "parallel/activation_checkpoints.h"
#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::ZeroOptions;

namespace {

struct Tagger : nn::Layer<Tagger> {
  nn::ModuleList<nn::LSTM> lstms;
  nn::Linear head = linear(10, 3);
  bool by_states = false;
  explicit Tagger(bool states) : by_states(states) {
    lstms.emplace_back(nn::LSTM::Options{.input = 6, .hidden = 9, .bidirectional = true});
    lstms.emplace_back(nn::LSTM::Options{.input = 18, .hidden = 12, .layers = 2, .proj_size = 10});
  }
  Variable forward(const Variable& x) {
    const nn::LstmOutput first = lstms[0](x), second = lstms[1](first.output);
    return head(by_states ? second.h.select(0, 1) + sum(first.c) * 0.01 : second.output.select(0, -1));
  }
  void fields(nn::Fields& f) override { f("lstms", lstms)("head", head); }
};

struct TaggerPlan {
  bool by_states = false;
  int ranks = 1;
  std::optional<ZeroOptions> options = {};
  bool ddp = false, wrap = false;
};

Tensors train_tagger(const TaggerPlan& plan) {
  const int accumulation = 4 / plan.ranks;
  const auto all = on_ranks<Tensors>(plan.ranks, [&](int rank) {
    manual_seed(1);
    Tagger net(plan.by_states);
    if (plan.wrap) parallel::ActivationCheckpoints().wrap_blocks(net);
    const auto optimizer = adamw(net.parameters());
    std::optional<Zero> zero;
    std::optional<parallel::DistributedDataParallel> ddp;
    std::optional<parallel::GradientAccumulator> sum;
    if (plan.options) zero.emplace(net, *optimizer, *plan.options);
    else if (plan.ddp) ddp.emplace(net);
    else sum.emplace(net.parameters());
    for (int step = 0; step < 3; ++step) {
      const auto backward = [&](int64_t micro) {
        manual_seed(99);
        set_random_step(1000 + uint64_t(step), uint64_t(micro));
        const Tensor x = randn({5, 4, 6}), y = randint(0, 3, {4});
        (ddp ? cross_entropy((*ddp)(x), y) : cross_entropy(net(x), y)).backward();
      };
      if (zero) {
        backwards(*zero, accumulation, backward);
        zero->step({.grad_scale = 1. / accumulation});
        continue;
      }
      for (int i = 0; i < accumulation; ++i) {
        std::optional<parallel::DistributedDataParallel::NoSync> local;
        if (ddp && i + 1 < accumulation) local.emplace(*ddp);
        backward(rank * accumulation + i);
        if (sum) sum->add();
      }
      if (sum) sum->finish();
      for (const Variable& p : net.parameters()) mul_scalar_(p.grad(), 1. / accumulation);
      optimizer->step();
      optimizer->zero_grad();
    }
    std::optional<Zero::Gathered> whole;
    if (zero) whole.emplace(*zero, net.parameters());
    return copy_parameters(net);
  });
  for (const Tensors& other : all) CHECK(differing(all[0], other) == "");
  return all[0];
}

}  // namespace

TEST_CASE("zero: LSTM has the same bits under DDP, every stage and checkpoints") {
  for (const bool by_states : {false, true}) {
    CAPTURE(by_states);
    const Tensors one = train_tagger({.by_states = by_states});
    CHECK(differing(one, train_tagger({.by_states = by_states, .wrap = true})) == "");
    CHECK(differing(one, train_tagger({.by_states = by_states, .ranks = 2, .ddp = true})) == "");
    for (const int stage : {1, 2, 3}) {
      CAPTURE(stage);
      const ZeroOptions options{.stage = stage, .param_persistence_threshold = 0};
      CHECK(differing(one, train_tagger({.by_states = by_states, .ranks = 2, .options = options})) == "");
    }
    const ZeroOptions small{.stage = 3, .param_persistence_threshold = 0, .max_live_parameters = 1};
    CHECK(differing(one, train_tagger({.by_states = by_states, .ranks = 2, .options = small, .wrap = true})) == "");
  }
}
