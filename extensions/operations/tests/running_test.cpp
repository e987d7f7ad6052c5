// Running sums and products, and the gradient of prod at zeros.
#include <doctest/doctest.h>

#include "extensions/operations/operations.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;

TEST_CASE("cumsum and cumprod") {
  const Tensor x = Tensor::from<int32_t>({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(cumsum(x, 1).to_vector<int64_t>() == std::vector<int64_t>{1, 3, 6, 4, 9, 15});
  CHECK(cumsum(x, 0).to_vector<int64_t>() == std::vector<int64_t>{1, 2, 3, 5, 7, 9});
  CHECK(cumprod(x, -1).to_vector<int64_t>() == std::vector<int64_t>{1, 2, 6, 4, 20, 120});
  CHECK(cumsum(x, 0).dtype() == i64);
  const Tensor y = randn({1000, 7});
  CHECK(allclose(cumsum(y, 0).select(0, -1), sum(y, {0}), 1e-4, 1e-4));
  CHECK(equal(cumsum(y.t(), 1), cumsum(y, 0).t()));
  CHECK(cumsum(full({}, 2), 0).item() == 2);
  CHECK(cumsum(empty({0, 2}), 0).shape() == Shape{0, 2});
  CHECK_ERROR(cumsum(x, 2), "[cumsum]");
  const Tensor big = randn({513, 1025});
  check_threads([&] { return std::vector{cumsum(big, 0), cumsum(big, 1)}; });
}

TEST_CASE("gradients at zeros are PyTorch's") {
  const auto grads = [](std::initializer_list<double> values, const Shape& shape, auto fn) {
    const Variable x(Tensor::from<double>(values, shape), true);
    sum(fn(x)).backward();
    return x.grad().template to_vector<double>();
  };
  using List = std::vector<double>;
  CHECK(grads({2, 0, 3, 0, 0, 5}, {2, 3}, [](auto& x) { return prod(x, {1}); }) == List{0, 6, 0, 0, 0, 0});
  CHECK(grads({2, 0, 3, 0}, {4}, [](auto& x) { return cumprod(x, 0); }) == List{1, 8, 0, 0});
}
