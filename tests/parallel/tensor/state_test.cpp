// Whole again: states, and the norm of all gradients.
#include <doctest/doctest.h>

#include "optim/clip.h"
#include "optim/optim.h"
#include "parallel/tensor/apply.h"
#include "tensor/ops.h"
#include "tests/parallel/tensor/util.h"

using namespace lockstep;
using namespace testing;
namespace tp = lockstep::tensor_parallel;

namespace {

constexpr int64_t vocab = 29, tokens = 12, batch = 2;

std::unique_ptr<nn::GPT> make(uint64_t seed = 11) {
  manual_seed(seed);
  auto model = std::make_unique<nn::GPT>(
      nn::GPT::Options{.vocab = vocab, .context = tokens, .layers = 1, .width = 24, .heads = 12, .tied = false});
  model->to(f64);  // in f32 Adam makes steps of the rounding of gradients that should be 0, of the keys' bias
  return model;
}

struct Trained {
  explicit Trained(nn::Module& m) : adamw(m.parameters(), {.lr = 1e-2, .weight_decay = 0.1}) {
    std::vector<std::pair<std::string, Variable>> names;
    for (auto& p : m.named_parameters()) names.emplace_back(p.name, p.variable);
    adamw.name_parameters(names);
  }
  void step(nn::GPT& m, uint64_t number) {
    m.loss(ids(number, {batch, tokens}, vocab), ids(number + 100, {batch, tokens}, vocab)).backward();
    adamw.step();
    adamw.zero_grad();
  }
  optim::AdamW adamw;
};

nn::State whole_state(const tp::TensorParallel& cut) {
  nn::State all;
  cut.while_whole(nullptr, [&] {
    for (const auto& [name, tensor] : cut.module().state()) all.emplace_back(name, tensor.clone());
  });
  return all;
}

void expect_state(const nn::State& mine, const nn::State& whole, const std::string& what, double tolerance = 0) {
  LOCKSTEP_CHECK(mine.size() == whole.size(), what, ": ", mine.size(), " tensors for ", whole.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    LOCKSTEP_CHECK(mine[i].first == whole[i].first, what, ": ", mine[i].first, " for ", whole[i].first);
    expect_near(mine[i].second, whole[i].second, what + " " + mine[i].first, tolerance);
  }
}

}  // namespace

TEST_CASE("cuts: every element once, whatever the sizes") {
  for (const int n : worlds) {
    on_ranks(n, [n](dist::ProcessGroup& g) {
      struct Row {
        Shape shape;
        int64_t dim;
        std::vector<int64_t> blocks;
      };
      for (const Row& row : {Row{{1, 3}, 0, {}}, Row{{7, 3}, 0, {}}, Row{{3, 7}, 1, {}}, Row{{16, 2}, -2, {8, 4, 4}},
                             Row{{2, 11, 2}, 1, {5, 0, 6}}, Row{{0, 2}, 0, {}}}) {
        const tp::Cut cut{row.shape, row.dim, row.blocks};
        const Tensor whole = values(1, row.shape), slice = tp::slice_of(whole, cut, n, g.rank());
        LOCKSTEP_CHECK(slice.shape() == tp::slice_shape(cut, n, g.rank()), "its shape");
        LOCKSTEP_CHECK(equal(tp::joined(slice, cut, g), whole), "joined again, ", row.shape);
        if (n > 1)
          expect_message([&] { tp::joined(values(1, {99}), {.whole = {100}}, g); }, "expected a shard of shape ");
      }
      expect_message(
          [&] {
            tp::slice_of(values(1, {4, 2}), {.whole = {4, 2}, .blocks = {1, 2}}, n, 0);
          },
          "expected blocks that add up to 4, got 3");
    });
  }
}

TEST_CASE("states: whole under the old names, and back") {
  const auto whole = make();
  Trained reference(*whole);
  for (uint64_t i = 0; i < 3; ++i) reference.step(*whole, i);
  const nn::State start = make()->state();
  for (const int n : {1, 2, 3, 4}) {
    on_ranks(n, [&](dist::ProcessGroup& g) {
      const auto model = make(uint64_t(20 + g.rank()));
      const auto cut = tp::apply(*model, g);
      const auto load = [&](const nn::State& state) { cut.while_whole(nullptr, [&] { model->load_state(state); }); };
      load(start);
      expect_state(whole_state(cut), start, "what was loaded");
      Trained trained(*model);
      cut.while_whole(&trained.adamw, [] {});  // before its first step it has nothing
      for (uint64_t i = 0; i < 2; ++i) trained.step(*model, i);
      const Variable weight = model->blocks[0].mlp.up.weight;
      const auto storage = weight.tensor().storage();
      optim::OptimizerState state;
      cut.while_whole(&trained.adamw, [&] {
        LOCKSTEP_CHECK(weight.shape() == Shape({96, 24}), "whole while fn runs");
        state = trained.adamw.state();
        for (auto& [name, tensor] : state.tensors) tensor = tensor.clone();
      });
      LOCKSTEP_CHECK(weight.tensor().storage() == storage && weight.shape() == Shape({96 / n, 24}),
                     "the slice is where it was");
      // Another optimizer goes on with it, and both are where one process is.
      Trained other(*model);
      cut.while_whole(&other.adamw, [&] { other.adamw.load_state(state); });
      other.step(*model, 2);
      expect_state(whole_state(cut), whole->state(), "parameters", 1e-9);
      optim::OptimizerState ended;
      cut.while_whole(&other.adamw, [&] { ended = other.adamw.state(); });
      const optim::OptimizerState one = reference.adamw.state();
      LOCKSTEP_CHECK(ended.numbers == one.numbers, "numbers of the optimizer");
      expect_state(ended.tensors, one.tensors, "optimizer", 1e-9);

      // Errors leave all as it was.
      const nn::State before = whole_state(cut);
      nn::State wrong = before;
      wrong[0].second = zeros({3, 3}, {.dtype = f64});
      wrong.emplace_back("blocks.7.norm1.weight", zeros({24}, {.dtype = f64}));
      expect_message([&] { load(wrong); }, "tokens.weight: expected shape (29, 24), got (3, 3)");
      expect_message([&] { cut.while_whole(&other.adamw, [] { fail("no more space"); }); }, "no more space");
      expect_state(whole_state(cut), before, "after an error");
      other.step(*model, 3);
    });
  }
}

TEST_CASE("the norm of all gradients, each counted once, with the same bits everywhere") {
  const auto whole = make();
  const Tensor x = ids(1, {batch, tokens}, vocab);
  whole->loss(x, x).backward();
  const double norm = optim::grad_norm(whole->parameters());
  optim::clip_grad_norm(whole->parameters(), norm / 2);
  for (const int n : {1, 2, 3, 4}) {
    for (const bool sequence : {false, true}) {
      on_ranks(n, [&](dist::ProcessGroup& g) {
        const auto model = make();
        const auto cut = tp::apply(*model, g, {.sequence = sequence});
        model->loss(x, x).backward();
        const double mine = cut.grad_norm();
        LOCKSTEP_CHECK(std::abs(mine - norm) <= 1e-10 * norm, "norm ", mine, ", whole ", norm);
        const Tensor all = empty({n}, {.dtype = f64});
        g.all_gather(all, full({1}, mine, {.dtype = f64}));
        for (const double other : all.to_vector<double>()) LOCKSTEP_CHECK(other == mine, "other bits on another rank");
        LOCKSTEP_CHECK(cut.clip_grad_norm(norm * 2) == mine && std::abs(cut.grad_norm() - norm) <= 1e-10 * norm,
                       "not clipped");
        LOCKSTEP_CHECK(cut.clip_grad_norm(norm / 2) == mine, "the norm before");
        expect_near(tp::joined(model->head.weight.grad(), cut.find(model->head.weight)->cut, g),
                    whole->head.weight.grad(), "clipped");
        expect_near(model->norm.weight.grad(), whole->norm.weight.grad(), "clipped");
        expect_message([&] { cut.clip_grad_norm(-1); }, "expected max_norm >= 0, got -1");
      });
    }
  }
}
