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
    CAPTURE(stage);
    CHECK(differing(expected, parameters_after(2, {.stage = stage, .hooks = false}, f32, [](NetOnZero& on) {
                      const Variable& weight = on.net.a.weight;
                      for (int step = 0; step < 3; ++step) {
                        parallel::GradientSum sum(on.net.parameters());
                        for (int i = 0; i < 2; ++i) {
                          on.backward(step, dist::world().rank() * 2 + i);
                          CHECK(weight.grad().defined());
                          sum.add();
                        }
                        sum.finish();
                        on.zero.add();
                        CHECK_FALSE(weight.grad().defined());
                        on.zero.step({.grad_scale = 0.5});
                      }
                    })) == "");
  }
}

TEST_CASE("zero: overflow in other parts of the model skips the step, and their gradients count in the norm") {
  for (const int stage : {0, 1, 2, 3}) {
    on_ranks(2, [&](int) {
      NetOnZero on({.stage = stage, .nonfinite = NonFinite::skip});
      Other other;
      other.overflowed = true;
      const Tensors before = on.parameters();
      on.backward(0, 0);
      const auto skipped = on.zero.step({.others = &other});
      CHECK((skipped.skipped && skipped.first_nonfinite == "there.weight" && skipped.rank == 7 && other.asked == 1));
      CHECK(differing(before, on.parameters()) == "");
      other = {};
      other.norm_there = 12;
      on.backward(0, 0);
      const auto done = on.zero.step({.max_norm = 1, .others = &other});
      CHECK((!done.skipped && done.norm > 12 && done.norm < 20 && other.asked == 2));
    });
  }
}
