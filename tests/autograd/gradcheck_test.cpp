// gradcheck() itself: it finds wrong gradients and says where they are.
#include <doctest/doctest.h>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "autograd/tape.h"
#include "tests/autograd/loss_inputs.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

/// 3 x with the gradient `slope`; 0: no gradient at all.
Variable triple(const Variable& x, double slope) {
  return record("triple", {&x}, mul_scalar(x.tensor(), 3), [slope](Backward& back) {
    if (slope != 0) back.give(0, mul_scalar(back.grad(), slope));
  });
}

}  // namespace

TEST_CASE("gradcheck accepts right derivatives and names wrong elements") {
  manual_seed(1);
  const Inputs x{sampled({2, 3}, -1, 1)};
  CHECK(gradcheck([](const Inputs& x) { return triple(x[0], 3); }, x) == "");
  const std::string wrong = gradcheck([](const Inputs& x) { return triple(x[0], 2.9); }, x);
  CHECK(wrong.starts_with("input 0, element (0, 0): the tape gives"));
  const std::string none = gradcheck([](const Inputs& x) { return triple(x[0], 0); }, x);
  CHECK(contains(none, "the tape gives 0, differences give"));
  // One wrong element among many right ones.
  const std::string one = gradcheck(
      [](const Inputs& x) {
        const Variable rest = x[0].narrow(1, 0, 2) * 1.0;
        return sum(rest) + sum(triple(x[0][1].narrow(0, 2, 1), 1)) + x[0][0][2];
      },
      x);
  CHECK(one.find("input 0, element (1, 2)") == 0);
}

TEST_CASE("gradcheck replays random numbers and leaves inputs as they were") {
  manual_seed(2);
  const Inputs x{sampled({4, 5}, -1, 1)};
  const Tensor before = x[0].tensor().clone();
  CHECK(gradcheck([](const Inputs& x) { return dropout(x[0], 0.5) * dropout(x[0], 0.3); }, x) == "");
  CHECK(equal(before, x[0].tensor()));
  CHECK(!x[0].grad().defined());
}

TEST_CASE("gradcheck wants f64 leaves without repeated elements") {
  const auto twice = [](const Inputs& x) { return x[0] * 2.0; };
  const Inputs narrow{Variable(ones({2}), true)}, repeated{Variable(ones({1}, {.dtype = f64}).expand({3}), true)};
  CHECK_ERROR_BEGINS(gradcheck(twice, narrow),
                     "[gradcheck] expected inputs that require grad to be f64 leaves, got f32");
  CHECK_ERROR_BEGINS(gradcheck(twice, repeated), "[gradcheck] expected inputs without repeated elements");
  CHECK_ERROR_IS(gradcheck(twice, {Variable(ones({2}, {.dtype = f64}))}),
                 "[gradcheck] expected an input that requires grad, got none; call requires_grad_()");
}
