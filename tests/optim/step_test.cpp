// The kernels of optimizer steps against their formulas in f64.
#include "optim/step_kernels.h"
#include "tests/optim/formulas.h"

using namespace testing;

namespace {

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
  }
  return all;
}

const SgdArgs plain_sgd{.lr = 0.1, .momentum = 0, .dampening = 0, .weight_decay = 0, .nesterov = false, .first = true};

}  // namespace

TEST_CASE("optimizer kernels follow their formulas") { check_formulas(formula_cases()); }

TEST_CASE("optimizer kernels give the same bits however the tensor is cut, and for any number of threads") {
  check_cuts(formula_cases());
}

TEST_CASE("adam and sgd write a rounded copy, and take 16-bit gradients") {
  for (DType half : {f16, bf16}) {
    for (int64_t n : {5, 4097}) {
      Slots s = fresh_slots(n, f32);
      Tensor low = empty({n}, {half}), none;
      const Tensor grad = random_values({n}, half, 5);
      const auto adam = [&](Slots& to, const Tensor& g, Tensor& rounded) {
        kernels::adam(default_device(), to.p, g, to.a, to.b, none, rounded,
                      {0.01, 0.9, 0.999, 1e-8, 0, true, 0.1, 0.001});
      };
      adam(s, grad, low);
      CHECK(equal(low, s.p.to(half)));
      Slots wide = fresh_slots(n, f32);
      adam(wide, grad.to(f32), none);
      CHECK(equal(wide.p, s.p));
      kernels::sgd(default_device(), s.p, grad, s.a, low, plain_sgd);
      CHECK(equal(low, s.p.to(half)));
    }
  }
}

TEST_CASE("optimizer kernels round each product before they add it, so that all processors have the same bits") {
  Tensor p = random_values({1000}, f32, 1), none;
  const Tensor grad = random_values({1000}, f32, 2);
  std::vector<float> expected = p.to_vector<float>();
  const std::vector<float> grads = grad.to_vector<float>();
  for (size_t i = 0; i < expected.size(); ++i) {
    const volatile float step = grads[i] * 0.1f;  // volatile: this test is compiled with fused multiply-add
    expected[i] -= step;
  }
  kernels::sgd(default_device(), p, grad, none, none, plain_sgd);
  CHECK(p.to_vector<float>() == expected);
}
