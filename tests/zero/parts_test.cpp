// ZeRO when the caller accumulates gradients (a pipeline), and when the model is only a part of one.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::NonFinite;

namespace {

/// Stands for the model's other parts, which may report an overflow or a norm.
struct Other : zero::OtherParts {
  bool overflowed = false;
  double norm_there = 0;
  int asked = 0;
  void agree(zero::StepReport& report) override {
    ++asked;
    if (!overflowed) return;
    report.skipped = true;
    report.first_nonfinite = "there.weight";
    report.rank = 7;
  }
  double norm(const std::vector<std::pair<std::string, double>>& squares) override {
    ++asked;
    double sum = norm_there * norm_there;
    for (const auto& [name, square] : squares) sum += square;
    CHECK(squares.size() == 8);
    return std::sqrt(sum);
  }
  Tensor captured_norm(const Tensor&, std::vector<NormPiece>&) override { fail("no step is captured"); }
};

}  // namespace

TEST_CASE("zero: a caller's sum of gradients is one backward") {
  const Tensors expected = train({.ranks = 2, .accumulation = 2, .options = zero::ZeroOptions{.stage = 1}, .steps = 3});
  for (const int stage : {0, 1, 2}) {
    const auto all = on_ranks<Tensors>(2, [&](int rank) {
      manual_seed(1);
      Net net;
      const auto optimizer = adamw(net.parameters());
      Zero zero(net, *optimizer, {.stage = stage, .hooks = false});
      for (int step = 0; step < 3; ++step) {
        parallel::GradientSum sum(net.parameters());
        for (int i = 0; i < 2; ++i) {
          loss_of_micro_batch(net, step, rank * 2 + i).backward();
          CHECK(net.a.weight.grad().defined());
          sum.add();
        }
        sum.finish();
        zero.add();
        CHECK_FALSE(net.a.weight.grad().defined());
        zero.step({.grad_scale = 0.5});
      }
      return gathered_parameters(zero, net);
    });
    for (const Tensors& mine : all) CHECK_MESSAGE(differing(expected, mine) == "", "stage " << stage);
  }
}

TEST_CASE("zero: add() is for gradients that no hook gives, below stage 3") {
  on_ranks(1, [](int) {
    manual_seed(1);
    Net net, other;
    const auto optimizer = adamw(net.parameters()), its = adamw(other.parameters());
    Zero zero(net, *optimizer, {.stage = 1});
    CHECK_ERROR(zero.add(), "expected add() with hooks = false");
    CHECK_ERROR(Zero(other, *its, {.stage = 3, .hooks = false}), "[zero] stage 3 needs hooks");
  });
}

TEST_CASE("zero: overflow in other parts of the model skips the step, and their gradients count in the norm") {
  for (const int stage : {0, 1, 2, 3}) {
    on_ranks(2, [&](int) {
      manual_seed(1);
      Net net;
      const auto optimizer = adamw(net.parameters());
      Zero zero(net, *optimizer, {.stage = stage, .nonfinite = NonFinite::skip});
      Other other;
      other.overflowed = true;
      const Tensors before = [&] { return gathered_parameters(zero, net); }();
      loss_of_micro_batch(net, 0, 0).backward();
      const auto skipped = zero.step({.others = &other});
      CHECK((skipped.skipped && skipped.first_nonfinite == "there.weight" && skipped.rank == 7 && other.asked == 1));
      {
        const auto full = zero.gathered();
        CHECK(differing(before, copy_parameters(net)) == "");
      }
      other = {};
      other.norm_there = 12;
      loss_of_micro_batch(net, 0, 0).backward();
      const auto done = zero.step({.max_norm = 1, .others = &other});
      CHECK((!done.skipped && done.norm > 12 && done.norm < 20 && other.asked == 2));
    });
  }
}
