// fmod against C's remainders: integers of every dtype, floats with their special values, gradients, errors.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

#include "extensions/operations/operations.h"
#include "tests/messages.h"

using namespace lockstep;

TEST_CASE("fmod of whole numbers has the sign of the dividend, as C's %") {
  for (const DType dtype : {i64, i32, i8, u8}) {
    CAPTURE(dtype);
    const int64_t low = dtype == u8 ? 0 : -128, high = dtype == u8 ? 255 : 127;
    std::vector<int64_t> divisors;
    for (int64_t b = low; b <= high; ++b)
      if (b != 0) divisors.push_back(b);
    const Tensor all = arange(low, high + 1, 1, {.dtype = dtype});
    const Tensor by = Tensor::from(divisors, {int64_t(divisors.size()), 1}).to(dtype).to(all.device());
    const auto rests = fmod(all, by).to_vector<int64_t>();
    size_t at = 0, wrong = 0;
    for (const int64_t b : divisors)
      for (int64_t a = low; a <= high; ++a, ++at) wrong += rests[at] != a % b;
    CHECK(wrong == 0);
  }
  constexpr int64_t least = std::numeric_limits<int64_t>::min(), largest = std::numeric_limits<int64_t>::max();
  const Tensor ends = Tensor::from<int64_t>({least, largest, -7});
  CHECK(fmod(ends, 10).to_vector<int64_t>() == std::vector<int64_t>{least % 10, largest % 10, -7});
  CHECK(fmod(ends, -1).to_vector<int64_t>() == std::vector<int64_t>{0, 0, 0});
  CHECK(fmod(ends, least).to_vector<int64_t>() == std::vector<int64_t>{0, largest, -7});
}

TEST_CASE("fmod of floats is std::fmod, bit for bit") {
  const double inf = INFINITY;
  const std::vector<std::array<double, 2>> rows = {
      {5.5, 2},  {-5.5, 2}, {5.5, -2}, {-5.5, -2}, {6, 3}, {-6, 3},    {0, 3}, {-0.0, 3}, {1, 0.1}, {1e30, 7},
      {-3, inf}, {3, -inf}, {inf, 2},  {-inf, 2},  {5, 0}, {-5, -0.0}, {0, 0}, {NAN, 2},  {2, NAN}};
  for (const DType dtype : {f32, f64}) {
    for (const auto& [a, b] : rows) {
      INFO("a ", a, ", b ", b);
      const double wanted = dtype == f32 ? double(std::fmod(float(a), float(b))) : std::fmod(a, b);
      const double got = fmod(full({1}, a, {.dtype = dtype}), b).item();
      CHECK((std::isnan(wanted) ? std::isnan(got) : got == wanted && std::signbit(got) == std::signbit(wanted)));
    }
  }
  for (const DType dtype : {f16, bf16}) {
    const Tensor x = arange(-300, 300, 7, {.dtype = dtype});
    CHECK(equal(fmod(x, -3), fmod(x.to(f32), -3).to(dtype)));
  }
}

TEST_CASE("fmod: PyTorch's gradients, and errors") {
  const Variable a(Tensor::from<float>({-7, 0, 7}), true), b(full({}, 2), true);
  sum(fmod(a, b)).backward();
  CHECK(equal(a.grad(), ones({3})));
  CHECK(b.grad().item() == 0);  // -(-3 + 0 + 3)
  const Tensor four = full({1}, 4, {.dtype = i64});
  CHECK_ERROR(fmod(four, 0), "[fmod] expected a divisor without zeros, got a 0 among i64");
  CHECK_ERROR(fmod(four, 0.5), "[full] expected a whole number for i64, got 0.5");
  CHECK_ERROR(fmod(four, ones({1})), "[fmod] expected one dtype, got i64 and f32");
  CHECK_ERROR(fmod(four.to(boolean), four.to(boolean)), "[fmod] expected a floating or integer dtype, got bool");
}
