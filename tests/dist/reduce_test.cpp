// Arithmetic of collectives: every dtype and operation, at any alignment, against a scalar loop.
#include "dist/reduce.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tensor/convert.h"
#include "tests/dist/values.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;
using testing::all_dtypes;
using testing::all_ops;

namespace {

/// The operation on one pair of values, defined in the widest type of the kind.
template <class T> T expected(dist::ReduceOp op, T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return op == dist::ReduceOp::sum || op == dist::ReduceOp::max ? a || b : a && b;
  } else if constexpr (std::is_integral_v<T>) {
    __extension__ typedef __int128 Wide;
    const Wide x = a, y = b;
    return T(op == dist::ReduceOp::product ? x * y
             : op == dist::ReduceOp::min   ? std::min(x, y)
             : op == dist::ReduceOp::max   ? std::max(x, y)
                                           : x + y);
  } else {
    using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const A x = A(a), y = A(b), nan = std::numeric_limits<A>::quiet_NaN();
    const bool broken = std::isnan(x) || std::isnan(y);
    if (op == dist::ReduceOp::product) return T(x * y);
    if (op == dist::ReduceOp::min) return T(broken ? nan : y < x ? y : x);
    if (op == dist::ReduceOp::max) return T(broken ? nan : y > x ? y : x);
    return T(x + y);
  }
}

template <class T> bool same(T a, T b) {
  if constexpr (!std::is_integral_v<T>)
    if (std::isnan(double(float(a))) && std::isnan(double(float(b)))) return true;
  if constexpr (is_half<T>) return float(a) == float(b);
  else return a == b;
}

/// Values of the type: ordinary ones mixed with special cases.
template <class T> std::vector<T> numbers(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<T> all;
  all.resize(size_t(count));
  for (auto&& x : all) {
    const uint32_t kind = random() % 8;
    if constexpr (std::is_same_v<T, bool>) {
      x = kind & 1;
    } else if constexpr (std::is_integral_v<T>) {
      x = kind == 0   ? std::numeric_limits<T>::max()
          : kind == 1 ? std::numeric_limits<T>::min()
                      : T(int64_t(random()) - (int64_t(1) << 31));
    } else {
      const float corner[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -65504.0f, 1e-7f, 3e38f};
      x = kind < 5 ? T(float(int(random() % 4001) - 2000) / 16) : T(corner[random() % 5]);
    }
  }
  return all;
}

}  // namespace

TEST_CASE("reduce_into equals the definition for every type, operation, length and address") {
  for (const DType dtype : all_dtypes)
    for (const dist::ReduceOp op : all_ops) {
      if (dtype == boolean && op == dist::ReduceOp::mean) continue;
      INFO("dtype ", name_of(dtype), ", op ", name_of(op));
      dispatch_all(dtype, "test", [&]<class T> {
        for (const int64_t count : {0, 1, 2, 7, 15, 16, 17, 31, 33, 64, 1009})
          for (const size_t shift : {0, 1, 3, 8}) {
            const std::vector<T> a = numbers<T>(count, 1), b = numbers<T>(count, 2);
            std::vector<std::byte> target(size_t(count) * sizeof(T) + 32, std::byte(0x5a)),
                source(target.size(), std::byte(0x5a));
            for (int64_t i = 0; i < count; ++i) {
              const T x = a[size_t(i)], y = b[size_t(i)];
              std::memcpy(target.data() + shift + size_t(i) * sizeof(T), &x, sizeof x);
              std::memcpy(source.data() + 8 - shift + size_t(i) * sizeof(T), &y, sizeof y);
            }
            reduce_into(dtype, op, target.data() + shift, source.data() + 8 - shift, count);
            int64_t wrong = 0;
            for (int64_t i = 0; i < count; ++i) {
              T got;
              std::memcpy(&got, target.data() + shift + size_t(i) * sizeof(T), sizeof got);
              wrong += !same(got, expected<T>(op, a[size_t(i)], b[size_t(i)]));
            }
            CHECK(wrong == 0);
            // bytes around the target are unchanged
            for (size_t i = 0; i < shift; ++i) CHECK(target[i] == std::byte(0x5a));
            for (size_t i = shift + size_t(count) * sizeof(T); i < target.size(); ++i)
              CHECK(target[i] == std::byte(0x5a));
          }
      });
    }
}

TEST_CASE("sums of f16 and bf16 are computed in f32 and rounded to nearest even once") {
  const auto sum = []<class T>(float a, float b, T) {
    T x(a), y(b);
    reduce_into(dtype_of<T>, dist::ReduceOp::sum, reinterpret_cast<std::byte*>(&x),
                reinterpret_cast<const std::byte*>(&y), 1);
    return float(x);
  };
  CHECK(sum(2048, 1, Half()) == 2048);  // a tie: 2048 is even
  CHECK(sum(2050, 1, Half()) == 2052);  // a tie: rounds up to even
  CHECK(sum(65504, 16, Half()) == std::numeric_limits<float>::infinity());
  CHECK(sum(0x1p-24f, 0x1p-24f, Half()) == 0x1p-23f);  // subnormal
  CHECK(sum(256, 1, BFloat16()) == 256);
  CHECK(sum(258, 1, BFloat16()) == 260);
}

TEST_CASE("any byte but 0 is a true bool, and the result is 0 or 1") {
  uint8_t target[] = {0, 2, 0, 255}, source[] = {0, 0, 4, 128};
  reduce_into(boolean, dist::ReduceOp::sum, reinterpret_cast<std::byte*>(target),
              reinterpret_cast<const std::byte*>(source), 4);
  CHECK(std::vector<int>(target, target + 4) == std::vector<int>{0, 1, 1, 1});
}

TEST_CASE("divide rounds once, and truncates integers") {
  for (const DType dtype : all_dtypes) {
    if (dtype == boolean) continue;
    CAPTURE(name_of(dtype));
    dispatch_all(dtype, "test", [&]<class T> {
      if constexpr (!std::is_same_v<T, bool>) {
        for (const int64_t divisor : {1, 2, 3, 7, 8, 200, 1000})
          for (const int64_t count : {0, 1, 17, 100}) {
            const auto a = numbers<T>(count, 3);
            std::vector<std::byte> bytes(size_t(count) * sizeof(T) + 1);
            if (count > 0) std::memcpy(bytes.data() + 1, a.data(), size_t(count) * sizeof(T));
            divide(dtype, bytes.data() + 1, count, divisor);
            int64_t wrong = 0;
            for (int64_t i = 0; i < count; ++i) {
              T got, want;
              std::memcpy(&got, bytes.data() + 1 + size_t(i) * sizeof(T), sizeof got);
              if constexpr (std::is_integral_v<T>) want = T(int64_t(a[size_t(i)]) / divisor);
              else if constexpr (std::is_same_v<T, double>) want = a[size_t(i)] / double(divisor);
              else want = T(float(a[size_t(i)]) / float(divisor));
              wrong += !same(got, want);
            }
            CHECK(wrong == 0);
          }
      }
    });
  }
}

TEST_CASE("meaningless options are rejected") {
  std::byte a[8] = {}, b[8] = {};
  CHECK_ERROR(reduce_into(boolean, dist::ReduceOp::mean, a, b, 1), "expected a number type for mean, got bool");
  CHECK_ERROR(divide(boolean, a, 1, 2), "expected a number type, got bool");
  CHECK_ERROR(divide(f32, a, 1, 0), "expected a divisor of at least 1, got 0");
  CHECK_ERROR(reduce_into(f32, dist::ReduceOp(9), a, b, 1),
              "expected a ReduceOp (sum, mean, product, min or max), got number 9");
}
