// Flipped, rolled and repeated tensors, and one_hot.
#include <doctest/doctest.h>

#include "extensions/operations/operations.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

using Ints = std::vector<int64_t>;
Ints list(const Tensor& x) { return x.to_vector<int64_t>(); }

}  // namespace

TEST_CASE("flip, roll, repeat") {
  const Tensor x = arange(6).reshape({2, 3});
  CHECK(list(flip(x, {1})) == Ints{2, 1, 0, 5, 4, 3});
  CHECK(list(flip(x, {0, -1})) == Ints{5, 4, 3, 2, 1, 0});
  CHECK(flip(x, {}).storage() != x.storage());
  CHECK(list(roll(x, {1}, {1})) == Ints{2, 0, 1, 5, 3, 4});
  CHECK(list(roll(x, {-1, 4}, {0, 1})) == Ints{5, 3, 4, 2, 0, 1});
  CHECK(list(roll(x, {2}, {})) == Ints{4, 5, 0, 1, 2, 3});
  CHECK(list(repeat(x, {1, 2})) == Ints{0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5});
  CHECK(list(repeat(x, {2, 1, 1})) == Ints{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  CHECK(repeat(x, {0, 3}).shape() == Shape{0, 9});
  CHECK(equal(repeat(x.t(), {2, 3}), repeat(x.t().contiguous(), {2, 3})));
  CHECK(repeat(ones({1, 1, 1, 1, 1, 1, 1, 2}), {1, 1, 2, 1, 1, 1, 1, 3}).shape() == Shape{1, 1, 2, 1, 1, 1, 1, 6});
  CHECK_REJECTED(flip, (x, {0, 0}), "no dim twice, got (0, 0)");
  CHECK_REJECTED(roll, (x, {1}, {0, 1}), "as many shifts as dims");
  CHECK_REJECTED(repeat, (x, {2}), "at least 2 counts for shape (2, 3), got (2)");
}

TEST_CASE("one_hot") {
  CHECK(list(one_hot(Tensor::from(Ints{1, 0, 2}, {3}))) == Ints{0, 1, 0, 1, 0, 0, 0, 0, 1});
  CHECK(one_hot(Tensor::from(Ints{1, 0}, {2, 1}), 5).shape() == Shape{2, 1, 5});
  CHECK(one_hot(empty({0}, {.dtype = i64}), 5).shape() == Shape{0, 5});
  CHECK(list(one_hot(full({}, 2, {.dtype = i64}), 4)) == Ints{0, 0, 1, 0});
  CHECK_ERROR(one_hot(full({1}, 3, {.dtype = i64}), 3),
              found_in_values("[one_hot] expected indices in [0, 3), got 3 at position 0"));
  CHECK_ERROR(one_hot(full({1}, -1, {.dtype = i64})),
              found_in_values("[one_hot] expected indices in [0, 1), got -1 at position 0"));
}
