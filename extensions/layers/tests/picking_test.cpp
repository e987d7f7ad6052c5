// Functions that pick elements by value or position, and functions that count them: gradients, edge cases, order and
// rejected arguments. Values are golden cases (golden/picking.safetensors).
#include "extensions/layers/composed.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "autograd/autocast.h"
#include "tests/autograd/check_gradient.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

using List = std::vector<double>;
List numbers(const Tensor& x) { return x.to_vector<double>(); }

}  // namespace

TEST_CASE("picking: gradients match finite differences") {
  manual_seed(9);
  const Tensor mask = Tensor::from<int64_t>({1, 0, 1, 1, 0, 1}, {2, 3}).to(boolean);
  const Tensor rows = Tensor::from<int64_t>({1, 0, -1, 1}), columns = Tensor::from<int64_t>({2, 0, 2, 2});
  CHECK_GRADIENT(masked_select(x[0], mask), {2, 3});
  CHECK_GRADIENT(masked_select(x[0], mask), {4, 1, 3});
  CHECK_GRADIENT(index_put(x[0], {rows, columns}, x[1], true), {2, 3}, {4});
  CHECK_GRADIENT(index_put(x[0], {rows}, x[1], true), {2, 3}, {1, 3});
  CHECK_GRADIENT(index_put(x[0], {{}, columns}, x[1].unsqueeze(-1), true), {5, 3, 2}, {4});
  CHECK_GRADIENT(index_put(x[0], {mask}, x[1]), {2, 3}, {});
  CHECK_GRADIENT(kthvalue(x[0], 2, 0).values, {3, 4});
  CHECK_GRADIENT(msort(x[0]), {4, 3});
}

TEST_CASE("picking: the last value for an index wins, sums are in order, and x is not changed") {
  const Tensor x = zeros({3}), index = Tensor::from<int64_t>({1, 1, -2}), values = Tensor::from({1.f, 2.f, 4.f});
  CHECK(numbers(index_put(x, {index}, values)) == List{0, 4, 0});
  CHECK(numbers(index_put(x, {index}, values, true)) == List{0, 7, 0});
  CHECK(numbers(x) == List{0, 0, 0});
  const Tensor order = Tensor::from({1e8f, 1.f, -1e8f});
  CHECK(numbers(index_put(x, {index}, order, true)) == List{0, double(1e8f + 1.f - 1e8f), 0});
  CHECK(numbers(index_put(x, {}, full({}, 3))) == List{3, 3, 3});
  const Tensor entire = Tensor::from<int64_t>({5, 6, 7});
  CHECK(numbers(index_put(entire, {Tensor::from<int64_t>({0})}, Tensor::from<int64_t>({9}))) == List{9, 6, 7});
}

TEST_CASE("picking: autocast widens") {
  const Autocast guard(bf16);
  const Variable x(zeros({2}, {.dtype = bf16})), values(ones({1}), true);
  CHECK(index_put(x, {Tensor::from<int64_t>({1})}, values).dtype() == f32);
}

TEST_CASE("picking: edges") {
  const Tensor none = zeros({0}), holes = Tensor::from({2.f, NAN, 1.f, NAN});
  CHECK(nonzero(full({}, 2)).shape() == Shape{1, 0});
  CHECK(nonzero(zeros({})).shape() == Shape{0, 0});
  CHECK(nonzero(zeros({2, 0, 3})).shape() == Shape{0, 3});
  CHECK(numbers(nonzero(Tensor::from({0.f, NAN, -0.f}))) == List{1});
  CHECK(nonzero_places(full({}, 2)).size() == 1);
  CHECK(unique(none).values.shape() == Shape{0});
  CHECK(unique(holes).values.numel() == 4);  // a NaN equals no other NaN
  CHECK(numbers(unique(holes).values.narrow(0, 0, 2)) == List{1, 2});
  const Unique flags = unique(Tensor::from<int64_t>({1, 0, 1}).to(boolean));
  CHECK(numbers(flags.values) == List{0, 1});
  CHECK(numbers(flags.counts) == List{1, 2});
  const Tensor slices = Tensor::from({NAN, 1.f, 0.f, 7.f, NAN, 1.f, 0.f, -7.f, -0.f, 7.f, 0.f, 7.f}, {6, 2});
  CHECK(numbers(unique(slices, 0).inverse) == List{2, 1, 3, 0, 1, 1});
  CHECK(numbers(unique(slices, -2).counts) == List{1, 3, 1, 1});
  CHECK(numbers(unique(slices, 0).values.narrow(0, 0, 2)) == List{0, -7, 0, 7});
  CHECK(numbers(unique_consecutive(slices, 0).inverse) == List{0, 1, 2, 3, 4, 4});
  CHECK(unique_consecutive(slices).values.numel() == 12);
  CHECK(unique(zeros({3, 0}), 1).values.shape() == Shape{3, 0});
  CHECK(unique(zeros({3, 0}), 1).counts.shape() == Shape{0});
  CHECK(unique_consecutive(full({}, 7)).inverse.shape() == Shape{});
  CHECK(bincount(none.to(i64)).shape() == Shape{0});
  CHECK(bincount(none.to(i64), none, 3).dtype() == i64);
  CHECK(bincount(Tensor::from<int64_t>({1, 1}).to(u8), Tensor::from<int64_t>({2, 3})).dtype() == f64);
  CHECK(numbers(histc(Tensor::from({1.f, 1.f}), 3)) == List{0, 2, 0});  // equal values: the range becomes 0 to 2
  CHECK(numbers(histc(Tensor::from({0.f, 4.f, 5.f, float(NAN)}), 2, 0, 4)) == List{1, 1});
  CHECK(numbers(histc(none, 2)) == List{0, 0});
  CHECK(numbers(searchsorted(none, Tensor::from({1.f}))) == List{0});
  CHECK(searchsorted(Tensor::from({1.f}), full({}, 2)).item() == 1);
  CHECK(searchsorted(Tensor::from({1.f, 3.f}), full({}, NAN)).item() == 2);
  CHECK(kthvalue(holes, 3).values.item() != kthvalue(holes, 3).values.item());
  CHECK(kthvalue(full({}, 7), 1).values.item() == 7);
  CHECK(masked_select(full({}, 7), full({}, 1).to(boolean)).shape() == Shape{1});
  CHECK(masked_select(zeros({2, 0}), zeros({0}).to(boolean)).shape() == Shape{0});
}

TEST_CASE("picking: slices from unique along a dim make up the whole, are sorted, and as many as a map finds") {
  manual_seed(10);
  for (const Shape& shape : {Shape{1, 1}, Shape{13, 2}, Shape{3, 11, 2}, Shape{101, 1}, Shape{2, 2, 37}})
    for (int d = 0; d < shape.rank(); ++d)
      for (const DType dtype : {f32, bf16, u8, boolean}) {
        CAPTURE(shape);
        CAPTURE(d);
        const Tensor x = randint(0, 2, shape).to(dtype);
        std::map<List, int> found;
        std::vector<List> runs;
        for (int64_t i = 0; i < shape[d]; ++i) {
          const List slice = numbers(x.select(d, i).contiguous().to(f32));
          ++found[slice];
          if (runs.empty() || runs.back() != slice) runs.push_back(slice);
        }
        for (const bool sorted : {true, false}) {
          const Unique u = sorted ? unique(x, d) : unique_consecutive(x, d);
          CHECK(equal(index_select(u.values, d, u.inverse), x));
          CHECK(sum(u.counts).item() == shape[d]);
          REQUIRE(u.values.size(d) == int64_t(sorted ? found.size() : runs.size()));
          int64_t i = 0;
          if (sorted)
            for (const auto& [slice, count] : found) {
              CHECK(numbers(u.values.select(d, i).contiguous().to(f32)) == slice);
              CHECK(u.counts[i++].item() == count);
            }
          else
            for (const List& slice : runs) CHECK(numbers(u.values.select(d, i++).contiguous().to(f32)) == slice);
        }
      }
}

TEST_CASE("picking: invalid arguments are rejected") {
  const Tensor x = zeros({2, 3}), list = Tensor::from<int64_t>({0, 1});
  CHECK_REJECTED(masked_select, (x, x), "a bool mask, got f32");
  CHECK_REJECTED(index_put, (x, {list, list, list}, zeros({})), "indices for at most 2 dims, got 3");
  CHECK_REJECTED(index_put, (x, {Tensor::from<int64_t>({2})}, zeros({})),
                 "indices in [-2, 2) for dim 0, got 2 at position 0");
  CHECK_REJECTED(index_put, (x, {list.to(f32)}, zeros({})), "indices of i64 or bool, got f32");
  CHECK_REJECTED(index_put, (x, {list.to(boolean).narrow(0, 0, 1)}, zeros({})),
                 "a mask whose sizes equal those of (2, 3) from dim 0 on, got (1)");
  CHECK_ERROR(index_put(x, {list}, zeros({4, 3})), "index_put");
  CHECK_REJECTED(index_put, (x, {list}, zeros({1, 2, 3})), "values that broadcast to (2, 3)");
  CHECK_REJECTED(index_put, (x, {list}, list), "values of x's dtype, got f32 and i64");
  CHECK_REJECTED(kthvalue, (x, 4), "k from 1 to 3, the size of dim 1, got 4");
  CHECK_REJECTED(searchsorted, (x, zeros({3, 1})), "a sequence of one dim");
  CHECK_REJECTED(searchsorted, (list, zeros({1})), "one dtype, got i64 and f32");
  CHECK_REJECTED(searchsorted, (zeros({1}), zeros({1}), {.sorter = list.narrow(0, 1, 1)}),
                 "a sorter with indices in [0, 1), got 1");
  CHECK_REJECTED(searchsorted, (zeros({2}), zeros({1}), {.sorter = list.narrow(0, 1, 1)}),
                 "a sorter of i64 (2), got i64 (1)");
  CHECK_REJECTED(bucketize, (x, x), "boundaries of one dim, got (2, 3)");
  CHECK_REJECTED(bincount, (neg(list)), "elements >= 0, got -1 at position 1");
  CHECK_REJECTED(bincount, (x), "a list of whole numbers, got f32 (2, 3)");
  CHECK_REJECTED(bincount, (empty({1}, {.dtype = c64, .device = cpu})), "a list of whole numbers, got c64 (1)");
  CHECK_REJECTED(bincount, (list, zeros({3})), "a weight for each element, (2), got (3)");
  CHECK_REJECTED(histc, (x, 0), "bins >= 1, got 0");
  CHECK_REJECTED(histc, (x, 1, 2, 1), "low <= high, got 2 and 1");
  CHECK_REJECTED(histc, (full({2}, NAN), 1), "a finite range, got nan");
  CHECK_REJECTED(unique, (x, 2), "one dim or more, and dim in [-2, 2), got shape (2, 3) and dim 2");
  CHECK_REJECTED(unique_consecutive, (zeros({}), 0), "one dim or more, and dim in [0, 0), got shape ()");
  CHECK_REJECTED(unique, (zeros({0, 2}), 1), "slices with elements, got dim 1 of (0, 2)");
  CHECK_REJECTED(histc, (list), "f32 or f64, got i64");
}
