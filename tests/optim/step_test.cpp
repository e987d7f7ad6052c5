// The kernels of optimizer steps against their formulas in f64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>

#include "optim/step_kernels.h"
#include "tensor/ops.h"
#include "tests/threads.h"

using namespace lockstep;

namespace {

Tensor random_values(const Shape& shape, DType dtype, uint32_t seed = 1) {
  std::mt19937 engine(seed);
  std::vector<double> values(static_cast<size_t>(numel_of(shape)));
  for (double& value : values) value = double(engine()) / 1e9 - 2.1;
  return Tensor::from(values, shape).to(dtype);
}

std::vector<double> doubles_of(const Tensor& x) { return x.to_vector<double>(); }

void check_values_close(const Tensor& got, const std::vector<double>& expected, double tolerance) {
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

std::vector<FormulaCase> formula_cases() {
  std::vector<FormulaCase> all;
  for (bool decoupled : {true, false}) {
    for (bool amsgrad : {true, false}) {
      all.push_back({"adam",
                     [=](Slots& s, const Tensor& grad, int t) {
                       Tensor none, low;
                       kernels::adam(default_device(), s.p, grad, s.a, s.b, amsgrad ? s.c : none, low,
                                     {0.01, 0.9, 0.95, 1e-6, 0.1, decoupled, 1 - std::pow(0.9, t),
                                      1 - std::pow(0.95, t), false, 0.5});
                     },
                     [=](double& p, double g, double& m, double& v, double& max_v, int t) {
                       g *= 0.5;
                       decoupled ? p *= 1 - 0.01 * 0.1 : g += 0.1 * p;
                       m += 0.1 * (g - m);
                       v = 0.95 * v + 0.05 * g * g;
                       max_v = std::max(max_v, v);
                       p -= 0.01 / (1 - std::pow(0.9, t)) * m /
                            (std::sqrt(amsgrad ? max_v : v) / std::sqrt(1 - std::pow(0.95, t)) + 1e-6);
                     }});
    }
  }
  for (double momentum : {0.0, 0.9}) {
    for (bool nesterov : {true, false}) {
      all.push_back({"sgd",
                     [=](Slots& s, const Tensor& grad, int t) {
                       Tensor low;
                       kernels::sgd(default_device(), s.p, grad, s.a, low,
                                    {.lr = 0.1,
                                     .momentum = momentum,
                                     .dampening = nesterov ? 0 : 0.3,
                                     .weight_decay = 0.01,
                                     .nesterov = nesterov,
                                     .first = t == 1,
                                     .maximize = true});
                     },
                     [=](double& p, double g, double& a, double&, double&, int t) {
                       g = -g + 0.01 * p;
                       if (momentum != 0) {
                         a = t == 1 ? g : momentum * a + (nesterov ? 1 : 0.7) * g;
                         g = nesterov ? g + momentum * a : a;
                       }
                       p -= 0.1 * g;
                     }});
    }
    for (bool centered : {true, false}) {
      all.push_back({"rmsprop",
                     [=](Slots& s, const Tensor& grad, int) {
                       Tensor low;
                       kernels::rmsprop(default_device(), s.p, grad, s.a, s.b, s.c, low,
                                        {0.01, 0.9, 1e-6, 0.01, momentum, centered});
                     },
                     [=](double& p, double g, double& square, double& average, double& buffer, int) {
                       g += 0.01 * p;
                       square = 0.9 * square + 0.1 * g * g;
                       if (centered) average += 0.1 * (g - average);
                       const double d = g / (std::sqrt(square - (centered ? average * average : 0)) + 1e-6);
                       if (momentum != 0) buffer = momentum * buffer + d;
                       p -= 0.01 * (momentum != 0 ? buffer : d);
                     }});
    }
  }
  all.push_back({"adagrad",
                 [](Slots& s, const Tensor& grad, int) {
                   Tensor low;
                   kernels::adagrad(default_device(), s.p, grad, s.a, low, {0.1, 1e-10, 0.01});
                 },
                 [](double& p, double g, double& a, double&, double&, int) {
                   g += 0.01 * p;
                   a += g * g;
                   p -= 0.1 * g / (std::sqrt(a) + 1e-10);
                 }});
  all.push_back({"lion",
                 [](Slots& s, const Tensor& grad, int) {
                   Tensor low;
                   kernels::lion(default_device(), s.p, grad, s.a, low, {0.001, 0.9, 0.99, 0.1});
                 },
                 [](double& p, double g, double& m, double&, double&, int) {
                   const double u = 0.9 * m + 0.1 * g;
                   p = p * (1 - 0.001 * 0.1) - 0.001 * double((u > 0) - (u < 0));
                   m = 0.99 * m + 0.01 * g;
                 }});
  return all;
}

Slots fresh_slots(int64_t n, DType dtype) {
  return {random_values({n}, dtype), zeros({n}, {dtype}), zeros({n}, {dtype}), zeros({n}, {dtype})};
}

}  // namespace

TEST_CASE("optimizer kernels follow their formulas") {
  for (const FormulaCase& optimizer : formula_cases()) {
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

TEST_CASE("optimizer kernels give the same bits however the tensor is cut, and for any number of threads") {
  const int64_t n = 40009;
  for (const FormulaCase& optimizer : formula_cases()) {
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

TEST_CASE("adam and sgd write a rounded copy, and take 16-bit gradients") {
  for (DType half : {f16, bf16}) {
    for (int64_t n : {5, 4097}) {
      Slots s = fresh_slots(n, f32);
      Tensor low = empty({n}, {half}), none;
      const Tensor grad = random_values({n}, half, 5);
      kernels::adam(default_device(), s.p, grad, s.a, s.b, none, low, {0.01, 0.9, 0.999, 1e-8, 0, true, 0.1, 0.001});
      CHECK(equal(low, s.p.to(half)));
      Slots wide = fresh_slots(n, f32);
      kernels::adam(default_device(), wide.p, grad.to(f32), wide.a, wide.b, none, none,
                    {0.01, 0.9, 0.999, 1e-8, 0, true, 0.1, 0.001});
      CHECK(equal(wide.p, s.p));
      kernels::sgd(default_device(), s.p, grad, s.a, low,
                   {.lr = 0.1, .momentum = 0, .dampening = 0, .weight_decay = 0, .nesterov = false, .first = true});
      CHECK(equal(low, s.p.to(half)));
    }
  }
}
