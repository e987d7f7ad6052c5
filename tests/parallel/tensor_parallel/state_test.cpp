// Gathering sharded tensors, and the norm of all gradients.
#include <doctest/doctest.h>

#include <cmath>

#include "optim/optimizer.h"
#include "parallel/tensor_parallel/apply.h"
#include "tensor/ops.h"
#include "tests/parallel/tensor_parallel/util.h"

using namespace lockstep;
using namespace testing;
namespace tp = lockstep::tensor_parallel;

namespace {

constexpr int64_t state_vocab = 29, state_tokens = 12, state_batch = 2;

nn::GPT make_gpt() {
  return seeded<nn::GPT>(nn::GPT::Options{
      .vocab = state_vocab, .context = state_tokens, .layers = 1, .width = 24, .heads = 12, .tied = false});
}

}  // namespace

TEST_CASE("cuts: every element once, whatever the sizes") {
  for (const int n : worlds) {
    on_ranks(n, [n](dist::ProcessGroup& g) {
      for (const tp::ShardLayout& cut : std::vector<tp::ShardLayout>{{{1, 3}, 0, {}},
                                                                     {{7, 3}, 0, {}},
                                                                     {{3, 7}, 1, {}},
                                                                     {{16, 2}, -2, {8, 4, 4}},
                                                                     {{2, 11, 2}, 1, {5, 0, 6}},
                                                                     {{0, 2}, 0, {}}}) {
        const Tensor entire = values(1, cut.full), shard = tp::shard_of(entire, cut, n, g.rank());
        LOCKSTEP_CHECK(shard.shape() == tp::shard_shape(cut, n, g.rank()), "its shape");
        LOCKSTEP_CHECK(equal(tp::joined(shard, cut, g), entire), "joined again, ", cut.full);
        if (n > 1) CHECK_ERROR(tp::joined(values(1, {99}), {.full = {100}}, g), "expected a shard of shape ");
      }
      CHECK_ERROR(tp::shard_of(values(1, {4, 2}), {.full = {4, 2}, .blocks = {1, 2}}, n, 0),
                  "expected blocks that add up to 4, got 3");
    });
  }
}

TEST_CASE("the norm of all gradients, each counted once, with the same bits everywhere") {
  nn::GPT entire = make_gpt();
  const Tensor x = ids(1, {state_batch, state_tokens}, state_vocab);
  entire.loss(x, x).backward();
  const double norm = optim::grad_norm(entire.parameters());
  optim::clip_grad_norm(entire.parameters(), norm / 2);
  for (const int n : {1, 2, 3, 4}) {
    for (const bool sequence : {false, true}) {
      on_ranks(n, [&](dist::ProcessGroup& g) {
        nn::GPT model = make_gpt();
        const auto cut = tp::apply(model, g, {.sequence = sequence});
        model.loss(x, x).backward();
        const double mine = cut.grad_norm();
        LOCKSTEP_CHECK(std::abs(mine - norm) <= 1e-10 * norm, "norm ", mine, ", whole ", norm);
        const Tensor all = empty({n}, {.dtype = f64});
        g.all_gather(all, full({1}, mine, {.dtype = f64}));
        for (const double other : all.to_vector<double>()) LOCKSTEP_CHECK(other == mine, "other bits on another rank");
        LOCKSTEP_CHECK(cut.clip_grad_norm(norm * 2) == mine && std::abs(cut.grad_norm() - norm) <= 1e-10 * norm,
                       "not clipped");
        LOCKSTEP_CHECK(cut.clip_grad_norm(norm / 2) == mine, "the norm before");
        expect_near(tp::joined(model.head.weight.grad(), cut.find(model.head.weight)->cut, g),
                    entire.head.weight.grad(), "clipped");
        expect_near(model.norm.weight.grad(), entire.norm.weight.grad(), "clipped");
        CHECK_ERROR(cut.clip_grad_norm(-1), "expected max_norm >= 0, got -1");
      });
    }
  }
}
