// The kernels of RMSprop, Adagrad and Lion against their formulas in f64.
#include "extensions/optimizers/step_kernels.h"
#include "tests/optim/formulas.h"

using namespace testing;

namespace {

std::vector<FormulaCase> formula_cases() {
  std::vector<FormulaCase> all;
  for (double momentum : {0.0, 0.9}) {
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

}  // namespace

TEST_CASE("rare kernels follow their formulas") { check_formulas(formula_cases()); }

TEST_CASE("rare kernels give the same bits however the tensor is cut, and for any number of threads") {
  check_cuts(formula_cases());
}
