// gradcheck() itself: it finds wrong gradients and says where they are.
#include <doctest/doctest.h>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "autograd/tape.h"

using namespace lockstep;

namespace {

using Inputs = std::vector<Variable>;

/// 3 x with the gradient `slope`; 0: no gradient at all.
Variable triple(const Variable& x, double slope) {
  return record("triple", {&x}, mul_scalar(x.tensor(), 3), [slope](Backward& back) {
    if (slope != 0) back.give(0, mul_scalar(back.grad(), slope));
  });
}

Variable leaf(const Shape& shape) {
  const Tensor x = empty(shape, {.dtype = f64});
  uniform_(x, -1, 1);
  return Variable(x, true);
}

}  // namespace

TEST_CASE("gradcheck accepts right derivatives and names wrong elements") {
  manual_seed(1);
  const Inputs x{leaf({2, 3})};
  CHECK(gradcheck([](const Inputs& x) { return triple(x[0], 3); }, x) == "");
  const std::string wrong = gradcheck([](const Inputs& x) { return triple(x[0], 2.9); }, x);
  CHECK(wrong.find("input 0, element (0, 0): the tape gives") == 0);
  CHECK(gradcheck([](const Inputs& x) { return triple(x[0], 0); }, x).find("the tape gives 0, differences give") !=
        std::string::npos);
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
  const Inputs x{leaf({4, 5})};
  const Tensor before = x[0].tensor().clone();
  CHECK(gradcheck([](const Inputs& x) { return dropout(x[0], 0.5) * dropout(x[0], 0.3); }, x) == "");
  CHECK(equal(before, x[0].tensor()));
  CHECK(!x[0].grad().defined());
}

TEST_CASE("gradcheck wants f64 leaves without repeated elements") {
  const auto message = [](const Inputs& inputs) {
    try {
      gradcheck([](const Inputs& x) { return x[0] * 2.0; }, inputs);
    } catch (const Error& error) { return std::string(error.what()); }
    return std::string("no error");
  };
  CHECK(message({Variable(ones({2}), true)})
            .find("[gradcheck] expected inputs that require grad to be f64 leaves, got f32") == 0);
  CHECK(message({Variable(ones({1}, {.dtype = f64}).expand({3}), true)})
            .find("[gradcheck] expected inputs without repeated elements") == 0);
  CHECK(message({Variable(ones({2}, {.dtype = f64}))}) == "[gradcheck] expected an input that requires grad, got none");
}
