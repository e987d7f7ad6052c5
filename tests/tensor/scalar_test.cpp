// Operations of tensors and scalars: true division, 64-bit integers, values that a dtype cannot hold, floor division,
// remainders and integer products.
#include "tensor/dtype.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tensor/complex.h"
#include "tensor/ops.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

constexpr int64_t nanoseconds = 1700000000123456789, odd = (int64_t(1) << 53) + 1;
constexpr int64_t least = std::numeric_limits<int64_t>::min(), largest = std::numeric_limits<int64_t>::max();

Tensor integers(std::initializer_list<int64_t> values, DType dtype = i64) {
  return Tensor::from<int64_t>(values).to(dtype);
}

int64_t floored(int64_t a, int64_t b) { return a / b - int64_t(a % b != 0 && (a < 0) != (b < 0)); }

}  // namespace

TEST_CASE("scalar: dividing by a number is a true division") {
  for (const DType dtype : {f32, f64})
    for (const int64_t by : {3, 5, 10, 41, 47, 49, 55, 61, 82, 83, 97, 98, 103, 107, 110, 161, 187}) {
      CAPTURE(by);
      const Tensor x = arange(0, 200 * by, by, {.dtype = dtype});
      CHECK(equal(floor(x / double(by)), arange(0, 200, 1, {.dtype = dtype})));
      CHECK(equal(x / double(by), div(x, full({}, by, {.dtype = dtype}))));
    }
  CHECK((full({1}, 1e-20, {.dtype = f64}) / 1e-310).item() == 1e-20 / 1e-310);
  CHECK((full({1}, 1e-20) / 1e-40).item() == double(1e-20f / 1e-40f));
  for (const DType dtype : {f16, bf16}) {
    const Tensor x = arange(1, 200, 1, {.dtype = dtype});
    CHECK(equal(x / 49, (x.to(f32) / 49).to(dtype)));
  }
  const Tensor z = full({1}, std::complex<double>(49, -98), {.dtype = c128, .device = cpu});
  CHECK((z / 49).item<std::complex<double>>() == std::complex<double>(1, -2));
  CHECK((z - 9).item<std::complex<double>>() == std::complex<double>(40, -98));
  const Tensor y = full({2}, 49, {.dtype = f64});
  CHECK(&div_scalar_(y, 49) == &y);
  CHECK(y.to_vector<double>() == std::vector<double>{1, 1});
  CHECK_ERROR_IS(integers({4}) / 2.0, "[div_scalar] expected a floating dtype, got i64; convert it with .to(f32)");
  CHECK_ERROR_BEGINS(integers({4}) - 0.5, "[sub_scalar] expected a whole number for i64, got 0.5");
}

TEST_CASE("scalar: whole numbers keep all their bits") {
  const Tensor t = integers({nanoseconds, nanoseconds + 5});
  using Values = std::vector<int64_t>;
  const auto options = TensorOptions{.dtype = i64};
  const Tensor filled = zeros({2}, options), masked = zeros({2}, options), moved = t.clone();
  filled.fill_(odd);
  masked_fill_(masked, Tensor::from<bool>({true, false}), odd);
  add_(moved, ones({2}, options), odd);
  const Tensor mask = Tensor::from<bool>({false, true});
  const std::tuple<const char*, Tensor, Values> rows[] = {
      {"x - s", t - nanoseconds, {0, 5}},
      {"s - x", nanoseconds - t, {0, -5}},
      {"x + s", integers({0, 1}) + odd, {odd, odd + 1}},
      {"s + x", odd + integers({0, 1}), {odd, odd + 1}},
      {"x * s", integers({1, 2}) * odd, {odd, 2 * odd}},
      {"x - least", integers({0, -1}) - least, {least, largest}},
      {"u64", integers({0}) + uint64_t(odd), {odd}},
      {"full", full({1}, odd, options), {odd}},
      {"full_like", full_like(t, odd), {odd, odd}},
      {"fill_", filled, {odd, odd}},
      {"masked_fill", masked_fill(t, mask, odd), {nanoseconds, odd}},
      {"masked_fill_", masked, {odd, 0}},
      {"clamp", clamp(t, nanoseconds, nanoseconds + 1), {nanoseconds, nanoseconds + 1}},
      {"clamp, open", clamp(t, nanoseconds + 1, INFINITY), {nanoseconds + 1, nanoseconds + 5}},
      {"pad", pad(integers({1}), {1, 0}, odd), {odd, 1}},
      {"add_ alpha", moved, {nanoseconds + odd, nanoseconds + 5 + odd}},
      {"addcmul", addcmul(t, integers({1, 1}), integers({1, 1}), -nanoseconds), {0, 5}},
      {"arange", arange(odd, odd + 3, 1), {odd, odd + 1, odd + 2}},
      {"arange, down", arange(odd, odd - 5, -2), {odd, odd - 2, odd - 4}},
      {"arange, all", arange(least, largest, largest), {least, -1, largest - 1}},
      {"arange, a fraction ends it", arange(0, 2.5), {0, 1, 2}},
      {"arange, u8", arange(250, 256, 1, {.dtype = u8}), {250, 251, 252, 253, 254, 255}}};
  for (const auto& [name, got, expected] : rows) {
    INFO(name);
    CHECK(got.to_vector<int64_t>() == expected);
  }
  CHECK(to_string(full({1}, odd, options)).find("9007199254740993") != std::string::npos);
  CHECK(full({1}, largest, {.dtype = f32}).item() == 0x1p63);
  CHECK(full({1}, odd, {.dtype = f64}).item() == 0x1p53);
  // Integers wrap around, so adding a negative number equals subtracting its absolute value.
  CHECK((integers({5}, u8) - 7).item<int64_t>() == 254);
  CHECK((integers({5}, u8) + -7).item<int64_t>() == 254);
  CHECK((integers({5}, u8) * -1).item<int64_t>() == 251);
  CHECK((integers({5}, i8) - -128).item<int64_t>() == -123);
}

TEST_CASE("scalar: allclose of whole numbers") {
  const auto close = [](int64_t a, int64_t b, double rtol, double atol) {
    return allclose(integers({a}), integers({b}), rtol, atol);
  };
  CHECK_FALSE(close(odd - 1, odd, 0, 0));
  CHECK(close(odd, odd, 0, 0));
  CHECK(close(odd - 1, odd, 0, 1));
  CHECK_FALSE(close(least, largest, 0, 0x1p63));
  CHECK(close(least, largest, 0, 0x1p64));
  CHECK(close(100, 101, 0.01, 0));
  CHECK_FALSE(close(100, 102, 0.01, 0));
  CHECK(allclose(integers({1, 200}, u8), integers({1, 201}, u8), 0, 1));
}

TEST_CASE("scalar: a value that the dtype cannot hold is rejected") {
  const Tensor small = integers({1, 2}, u8), four = integers({1, 2}, i32), eight = integers({1, 2});
  const Tensor mask = Tensor::from<bool>({true, false});
  const std::string byte = "expected a whole number from 0 to 255 for u8, got ";
  CHECK_ERROR_BEGINS(
      four * 3e9,
      "[mul_scalar] expected a whole number from -2147483648 to 2147483647 for i32, got 3e+09; take a dtype that");
  CHECK_ERROR_BEGINS(four + (int64_t(1) << 31),
                     "[add_scalar] expected a whole number from -2147483648 to 2147483647 for");
  CHECK_ERROR_BEGINS(eight + 0x1p63,
                     "[add_scalar] expected a whole number from -9223372036854775808 to 9223372036854775807");
  CHECK_ERROR_BEGINS(eight + uint64_t(largest) + 1, "(no error)");
  CHECK_ERROR_BEGINS(eight + (uint64_t(largest) + 1),
                     "[add_scalar] expected a whole number from -9223372036854775808 to");
  CHECK_ERROR_BEGINS(small + 256, "[add_scalar] " + byte + "256");
  CHECK_ERROR_BEGINS(small - 256, "[sub_scalar] " + byte + "256");
  CHECK_ERROR_BEGINS(small + -256, "[add_scalar] " + byte + "-256");
  CHECK_ERROR_BEGINS(full({1}, 300, {.dtype = u8}), "[full] " + byte + "300; take a dtype that holds it: .to(i64)");
  CHECK_ERROR_BEGINS(full({1}, -1, {.dtype = u8}), "[full] " + byte + "-1");
  CHECK_ERROR_BEGINS(full({1}, NAN, {.dtype = u8}), "[full] " + byte + "nan");
  CHECK_ERROR_BEGINS(full({1}, INFINITY, {.dtype = u8}), "[full] " + byte + "inf");
  CHECK_ERROR_BEGINS(full({1}, 0.5, {.dtype = u8}),
                     "[full] expected a whole number for u8, got 0.5; take a floating dtype");
  CHECK_ERROR_BEGINS(full_like(small, 256), "[full] " + byte + "256");
  CHECK_ERROR_BEGINS(small.fill_(256), "[fill_] " + byte + "256");
  CHECK_ERROR_BEGINS(masked_fill(small, mask, 256), "[masked_fill] " + byte + "256");
  CHECK_ERROR_BEGINS(masked_fill_(small, mask, -1), "[masked_fill_] " + byte + "-1");
  CHECK_ERROR_BEGINS(pad(small, {1, 1}, 256), "[pad] " + byte + "256");
  CHECK_ERROR_BEGINS(clamp(small, 0, 256), "[clamp] " + byte + "256");
  CHECK_ERROR_BEGINS(clamp(small, INFINITY, INFINITY), "[clamp] " + byte + "inf");
  CHECK_ERROR_BEGINS(clamp(small, NAN, 3), "[clamp] " + byte + "nan");
  CHECK_ERROR_BEGINS(clamp_(small, -1, 3), "[clamp_] " + byte + "-1");
  CHECK_ERROR_BEGINS(add_(small, small, 256), "[add_] " + byte + "256");
  CHECK_ERROR_BEGINS(arange(250, 257, 1, {.dtype = u8}), "[arange] " + byte + "256");
  CHECK_ERROR_BEGINS(arange(-1, 3, 1, {.dtype = u8}), "[arange] " + byte + "-1");
  CHECK_ERROR_BEGINS(arange(0, 1, 0.25), "[arange] expected a whole number for i64, got 0.25; take a floating dtype");
  CHECK(small.to_vector<int>() == std::vector<int>{1, 2});  // nothing was changed
}

TEST_CASE("scalar: floor division and remainder of whole numbers match Python") {
  for (const DType dtype : {i64, i32, i8, u8}) {
    CAPTURE(dtype);
    const int64_t low = dtype == u8 ? 0 : -128, high = dtype == u8 ? 255 : 127;
    std::vector<int64_t> divisors;
    for (int64_t b = low; b <= high; ++b)
      if (b != 0) divisors.push_back(b);
    const Tensor all = arange(low, high + 1, 1, {.dtype = dtype});
    const Tensor by_all = Tensor::from(divisors, {int64_t(divisors.size()), 1}).to(dtype);
    const auto quotients = floor_divide(all, by_all).to_vector<int64_t>(),
               rests = remainder(all, by_all).to_vector<int64_t>();
    size_t at = 0, wrong = 0;
    for (const int64_t b : divisors)
      for (int64_t a = low; a <= high; ++a, ++at) {
        const int64_t quotient = dtype == i8 && a == -128 && b == -1 ? -128 : floored(a, b);  // wraps around
        wrong += quotients[at] != quotient || rests[at] != a - floored(a, b) * b;
      }
    CHECK(wrong == 0);
    CHECK(floor_divide(all, 7).to_vector<int64_t>()[3] == floored(low + 3, 7));
    const Tensor one = integers({1, 7, 12}, dtype), by = integers({3}, dtype);
    CHECK(floor_divide(one, by).to_vector<int>() == std::vector<int>{0, 2, 4});
    CHECK(equal(remainder_(one.clone(), by), remainder(one, by)));
    CHECK(floor_divide_(one, by).to_vector<int>() == std::vector<int>{0, 2, 4});
  }
  CHECK(floor_divide(integers({least, largest, odd}), -1).to_vector<int64_t>() ==
        std::vector<int64_t>{least, -largest, -odd});
  CHECK(remainder(integers({least, odd}), integers({-1, 10})).to_vector<int64_t>() == std::vector<int64_t>{0, 3});
  const std::string zero = "expected a divisor without zeros, got a 0 among i64";
  CHECK_ERROR(floor_divide(integers({4}), 0), zero);
  CHECK_ERROR(floor_divide_(integers({4, 5}), integers({1, 0})), zero);
  CHECK_ERROR_BEGINS(remainder(integers({4}), 0.5), "[full] expected a whole number for i64, got 0.5");
}

TEST_CASE("scalar: floor division and remainder of floats match PyTorch") {
  const double inf = INFINITY, huge = 3e38;
  const std::vector<std::array<double, 4>> rows = {
      // a, b, floor_divide, remainder: as Python's // and %; where those raise, as PyTorch
      {7, 2, 3, 1},       {-7, 2, -4, 1},          {7, -2, -4, -1},    {-7, -2, 3, -1},    {6, 3, 2, 0},
      {-6, 3, -2, 0},     {0.5, 2, 0, 0.5},        {-0.5, 2, -1, 1.5}, {1, 0, inf, NAN},   {-1, 0, -inf, NAN},
      {0, 0, NAN, NAN},   {5, inf, 0, 5},          {-5, inf, -1, inf}, {inf, 2, NAN, NAN}, {NAN, 2, NAN, NAN},
      {2, NAN, NAN, NAN}, {huge, -2e38, -2, -1e38}};
  for (const DType dtype : {f32, f64}) {
    for (const auto& [a, b, quotient, rest] : rows) {
      INFO("a ", a, ", b ", b);
      const Tensor x = full({1}, a, {.dtype = dtype});
      const double got = floor_divide(x, b).item(), left = remainder(x, b).item();
      CHECK((std::isnan(quotient) ? std::isnan(got) : got == quotient));
      CHECK((std::isnan(rest) ? std::isnan(left) : left == rest || left == doctest::Approx(rest).epsilon(1e-6)));
    }
    CHECK(std::signbit(floor_divide(full({1}, -0.0, {.dtype = dtype}), 2).item()));
  }
  const Tensor one = full({1}, 1, {.dtype = f64});
  CHECK(floor_divide(one, 0.1).item() == 9);  // 0.1 is slightly more than a tenth
  CHECK(remainder(one, 0.1).item() == std::fmod(1, 0.1));
  for (const DType dtype : {f16, bf16}) {
    const Tensor x = arange(-300, 300, 7, {.dtype = dtype});
    CHECK(equal(floor_divide(x, 3), floor_divide(x.to(f32), 3).to(dtype)));
    CHECK(equal(remainder(x, -3), remainder(x.to(f32), -3).to(dtype)));
  }
}

TEST_CASE("scalar: operators compare element by element") {
  using Bools = std::vector<bool>;
  const auto bools = [](const Tensor& t) {
    CHECK(t.dtype() == boolean);
    return t.to_vector<bool>();
  };
  const Tensor row = Tensor::from<float>({1, 2, NAN}), column = Tensor::from<float>({1, 2}, {2, 1});
  CHECK(equal(row == column, eq(row, column)));
  CHECK(equal(row != column, ne(row, column)));
  CHECK(equal(row < column, lt(row, column)));
  CHECK(equal(row <= column, le(row, column)));
  CHECK(equal(row > column, gt(row, column)));
  CHECK(equal(row >= column, ge(row, column)));
  CHECK((row == column).shape() == Shape({2, 3}));
  CHECK(bools(row == row) == Bools{true, true, false});
  CHECK(bools(row != row) == Bools{false, false, true});

  for (const DType dtype : {f32, f64, f16, bf16, i64, i32, i8, u8}) {
    CAPTURE(dtype);
    const Tensor x = integers({1, 2, 3}, dtype);
    const std::tuple<const char*, Tensor, Bools> rows[] = {
        {"x == s", x == 2, {false, true, false}},     {"s == x", 2 == x, {false, true, false}},
        {"x != s", x != 2, {true, false, true}},      {"s != x", 2 != x, {true, false, true}},
        {"x < s", x < 2, {true, false, false}},       {"s < x", 2 < x, {false, false, true}},
        {"x <= s", x <= 2, {true, true, false}},      {"s <= x", 2 <= x, {false, true, true}},
        {"x > s", x > 2, {false, false, true}},       {"s > x", 2 > x, {true, false, false}},
        {"x >= s", x >= 2, {false, true, true}},      {"s >= x", 2 >= x, {true, true, false}},
        {"a fraction", x < 2.5, {true, true, false}}, {"equals no fraction", x == 2.5, {false, false, false}},
        {"negative", x > -1, {true, true, true}},     {"infinite", x < INFINITY, {true, true, true}},
        {"NaN", x != NAN, {true, true, true}},        {"large", x <= 1e6, {true, true, true}}};
    for (const auto& [name, got, wanted] : rows) {
      INFO(name);
      CHECK(bools(got) == wanted);
    }
  }
  // Whole numbers keep all bits; a number beyond the dtype's range is compared all the same.
  const Tensor big = integers({odd - 1, odd, odd + 1});
  CHECK(bools(big == odd) == Bools{false, true, false});
  CHECK(bools(big < odd) == Bools{true, false, false});
  CHECK(bools(big > 0.5) == Bools{true, true, true});
  CHECK(bools(integers({255, 44}, u8) == 300) == Bools{false, false});
  CHECK(bools(integers({least, largest}) > -1e30) == Bools{true, true});
  CHECK(bools(Tensor::from<float>({0.1f, 0.2f}) == 0.1) == Bools{true, false});  // 0.1 as f32 has it
  const Tensor mask = Tensor::from<bool>({false, true});
  CHECK(bools(mask == true) == Bools{false, true});
  CHECK(bools(mask == 2) == Bools{false, false});
  CHECK(bools(mask < 1) == Bools{true, false});
  CHECK(bools(eq(big, odd)) == Bools{false, true, false});
  CHECK(where(big == odd, big, zeros_like(big)).to_vector<int64_t>() == std::vector<int64_t>{0, odd, 0});
  CHECK_ERROR(big == row, "[eq] expected operands of one dtype, got i64 and f32");
  CHECK_ERROR(Tensor() < 1, "[lt] tensor is undefined");
}

TEST_CASE("scalar: products of whole numbers") {
  if (!default_device().is_cpu()) {
    CHECK_ERROR(matmul(integers({1}), integers({1})), "[matmul] integer products are supported on the CPU");
    return;
  }
  const auto numbers = [](const Shape& shape, DType dtype, int64_t seed) {
    return remainder(arange(numel_of(shape), {.dtype = i64}) * (7919 * seed) + seed, 251).to(dtype).reshape(shape);
  };
  // Computes the products one by one; in a narrow dtype the low bits are kept.
  const auto slow = [](const Tensor& a, const Tensor& b) {
    return sum(mul(a.to(i64).unsqueeze(-1), b.to(i64).unsqueeze(-3)), {-2}).to(a.dtype());
  };
  for (const DType dtype : {i64, i32, i8, u8}) {
    CAPTURE(dtype);
    const Tensor a = numbers({5, 70}, dtype, 1), b = numbers({70, 33}, dtype, 2);
    const Tensor many = numbers({2, 3, 5, 70}, dtype, 3), some = numbers({3, 70, 4}, dtype, 4);
    CHECK(equal(matmul(a, b), slow(a, b)));
    CHECK(equal(matmul(b.t(), a.t()), matmul(a, b).t().contiguous()));
    CHECK(equal(matmul(many, b), slow(many, b)));
    CHECK(equal(matmul(many, some), slow(many, some)));
    CHECK(equal(matmul(many.slice(3, 0, end_of_dim, 2), some.slice(1, 0, end_of_dim, 2)),
                slow(many.slice(3, 0, end_of_dim, 2), some.slice(1, 0, end_of_dim, 2))));
    CHECK(equal(matmul(a[0], b), matmul(a, b)[0]));
    CHECK(equal(matmul(a, b.select(1, 2)), matmul(a, b).select(1, 2).contiguous()));
    const Tensor c = numbers({5, 33}, dtype, 5);
    CHECK(equal(addmm(c, a, b, 2, 3), add(mul_scalar(c, 2), mul_scalar(matmul(a, b), 3))));
    CHECK(equal(outer(a[0], b[0]), slow(a[0].unsqueeze(1), b[0].unsqueeze(0))));
    CHECK(equal(matmul(a.narrow(1, 0, 0), b.narrow(0, 0, 0)), zeros({5, 33}, {.dtype = dtype})));
  }
  CHECK(matmul(integers({odd, 1}), integers({1, 1})).item<int64_t>() == odd + 1);
  CHECK(matmul(integers({largest}), integers({2})).item<int64_t>() == -2);
  CHECK_ERROR(matmul(integers({1}).to(boolean), integers({1}).to(boolean)), "[matmul] expected a floating");
}
