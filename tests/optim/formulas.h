#pragma once
// Kernels of optimizer steps against their formulas in f64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "tensor/ops.h"
#include "tests/threads.h"

namespace testing {

using namespace lockstep;

inline Tensor random_values(const Shape& shape, DType dtype, uint32_t seed = 1) {
  std::mt19937 engine(seed);
  std::vector<double> values(static_cast<size_t>(numel_of(shape)));
  for (double& value : values) value = double(engine()) / 1e9 - 2.1;
  return Tensor::from(values, shape).to(dtype);
}

inline std::vector<double> doubles_of(const Tensor& x) { return x.to_vector<double>(); }

inline void check_values_close(const Tensor& got, const std::vector<double>& expected, double tolerance) {
  const auto values = doubles_of(got);
  REQUIRE(values.size() == expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const bool is_close = std::abs(values[i] - expected[i]) <= tolerance * std::max(1.0, std::abs(expected[i]));
    if (!is_close) FAIL_CHECK("element " << i << ": " << values[i] << ", expected " << expected[i]);
  }
}

struct Slots {
  Tensor p, a, b, c;
};  // a parameter and up to three states
using TensorStep = std::function<void(Slots&, const Tensor& grad, int step)>;
/// The step of a single number, in f64.
using NumberStep = std::function<void(double& p, double g, double& a, double& b, double& c, int step)>;
struct FormulaCase {
  const char* name;
  TensorStep step;
  NumberStep scalar;
};

inline Slots fresh_slots(int64_t n, DType dtype) {
  return {random_values({n}, dtype), zeros({n}, {dtype}), zeros({n}, {dtype}), zeros({n}, {dtype})};
}

/// The kernels compute what the formulas do.
inline void check_formulas(const std::vector<FormulaCase>& cases) {
  for (const FormulaCase& optimizer : cases) {
    CAPTURE(optimizer.name);
    for (const auto& [dtype, tolerance] : {std::pair{f64, 1e-12}, std::pair{f32, 3e-6}}) {
      for (int64_t n : {0, 1, 37, 5000}) {
        Slots s = fresh_slots(n, dtype);
        auto p = doubles_of(s.p), a = doubles_of(s.a), b = doubles_of(s.b), c = doubles_of(s.c);
        for (int t = 1; t <= 4; ++t) {
          const Tensor grad = random_values({n}, dtype, uint32_t(10 + t));
          optimizer.step(s, grad, t);
          const auto g = doubles_of(grad);
          for (size_t i = 0; i < p.size(); ++i) optimizer.scalar(p[i], g[i], a[i], b[i], c[i], t);
        }
        check_values_close(s.p, p, tolerance);
        check_values_close(s.a, a, tolerance);
      }
    }
  }
}

/// The bits are the same however the tensor is cut, and for any number of threads.
inline void check_cuts(const std::vector<FormulaCase>& cases) {
  const int64_t n = 40009;
  for (const FormulaCase& optimizer : cases) {
    CAPTURE(optimizer.name);
    const auto run = [&](const std::vector<int64_t>& cuts) {
      Slots s = fresh_slots(n, f32);
      for (int t = 1; t <= 3; ++t) {
        const Tensor grad = random_values({n}, f32, uint32_t(20 + t));
        int64_t start = 0;
        for (int64_t end : cuts) {
          Slots piece{s.p.slice(0, start, end), s.a.slice(0, start, end), s.b.slice(0, start, end),
                      s.c.slice(0, start, end)};
          optimizer.step(piece, grad.slice(0, start, end), t);
          start = end;
        }
      }
      return std::vector{s.p, s.a, s.b, s.c};
    };
    const auto full = run({n});
    for (const auto& cuts : {std::vector<int64_t>{1, 8, 21, 4099, n}, std::vector<int64_t>{20004, 20011, n}}) {
      const auto cut = run(cuts);
      for (size_t i = 0; i < full.size(); ++i) CHECK(equal(cut[i], full[i]));
    }
    check_threads([&] { return run({n}); });
  }
}

}  // namespace testing
