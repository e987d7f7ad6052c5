// The search for infinities and NaN, and unscaling, over many tensors at once.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tensor/nonfinite.h"
#include "tensor/ops.h"
#include "tests/cuda/device.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

/// True if shape, dtype and all numbers agree. A NaN equals any other: on a card arithmetic gives NaN its own bits.
bool same_numbers(const Tensor& a, const Tensor& b) {
  const auto cleared = [](const Tensor& x) { return where(isnan(x), zeros_like(x), x); };
  return equal(isnan(a), isnan(b)) && equal(cleared(a), cleared(b));
}

}  // namespace

TEST_CASE("unscale_, find_nonfinite: match the CPU, for any number, size and mix of dtypes") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const int count : {0, 1, 5, 70, 200})
    for (const double bad : {0.0, infinity, -infinity, nan})
      for (const int at : {0, count / 2, count - 1}) {
        std::vector<Tensor> here, there;
        const int64_t sizes[] = {1, 0, 31, 33, 1000, 4099};
        const DType dtypes[] = {f32, f16, bf16, f64};
        for (int i = 0; i < count; ++i) {
          const Tensor x = arange(-3, double(sizes[i % 6]) - 3, 1, {.dtype = f32, .device = cpu}).to(dtypes[i % 4]);
          const bool marked = bad != 0 && i == at && x.numel() > 0;
          if (marked) x.slice(0, x.numel() - 1).fill_(bad);
          here.push_back(x);
          const Tensor same = x.clone();
          // Other bits than the CPU's, which the simulated device keeps.
          if (marked && std::isnan(bad)) same.slice(0, x.numel() - 1).fill_(-nan);
          // Some tensors are not aligned.
          there.push_back(i % 5 == 4 && x.numel() > 1 ? cat({same, same}).to(cuda0).slice(0, 1, x.numel())
                                                      : same.to(cuda0));
          if (i % 5 == 4 && x.numel() > 1) here.back() = cat({x, x}).slice(0, 1, x.numel());
        }
        CAPTURE(count);
        CAPTURE(bad);
        CAPTURE(at);
        const Tensor found = zeros({count}, {.dtype = i32, .device = cpu});
        if (count > 1) found.select(0, at == 0 ? 1 : 0).fill_(1);  // a flag that is already set must stay
        const Tensor found_there = found.to(cuda0);
        find_nonfinite(here, found);
        find_nonfinite(there, found_there);
        const bool any = bad != 0 && count > 0 && here[size_t(at)].numel() > 0;
        CHECK(sum(found).item() == any + (count > 1));
        if (any) CHECK(found.to_vector<int32_t>()[size_t(at)] == 1);
        CHECK(equal(found_there.to(cpu), found));
        CHECK(unscale_(there, 1.0 / 3) == unscale_(here, 1.0 / 3));
        for (size_t i = 0; i < here.size(); ++i) CHECK(same_numbers(there[i].to(cpu), here[i]));
      }
  const Tensor wide = ones({4, 6}, there);
  CHECK(unscale_({wide.t(), wide}, 0.5));  // not contiguous, and the same memory twice
  CHECK(wide.to_vector<float>()[5] == 0.25f);
  CHECK_ERROR(unscale_({wide, ones({2}, {.device = cpu})}, 1), "one device");
  CHECK_ERROR(unscale_({ones({2}, {.dtype = i64, .device = cuda0})}, 1), "floating");
  const Tensor place = zeros({1}, {.dtype = i32, .device = cuda0});
  find_nonfinite({(wide / 0.).t()}, place);
  CHECK(place.item() == 1);
  CHECK_ERROR(find_nonfinite({wide, wide}, place), "an i32 element for each of 2 tensors");
  CHECK_ERROR(find_nonfinite({wide}, place.to(f32)), "an i32 element");
  CHECK_ERROR(find_nonfinite({wide.to(cpu)}, place), "one device");
}
