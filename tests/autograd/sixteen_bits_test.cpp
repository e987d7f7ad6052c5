// Reductions, norms and losses in f16 and bf16 over all magnitudes, values and gradients: the f64 result, rounded once.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>

#include "autograd/ops.h"
#include "tensor/convert.h"
#include "tests/autograd/loss_inputs.h"

using namespace lockstep;

namespace {

struct SixteenBitsRow {
  std::string name;
  std::function<Variable(const Inputs&)> fn;
  // extra error in units of the rounding of 1, for derivatives computed from an already rounded result
  double slack = 0;
};

Tensor labels() { return Tensor::from<int64_t>({1, 0, 4, 2, 4, 3}, {6}).to(default_device()); }
Variable half_of(const Variable& x, bool first) { return x.narrow(0, first ? 0 : 3, 3); }

// The inputs: x[0] (6, 5), x[1] (5), x[2] probabilities (3, 5), x[3] their logarithms.
const SixteenBitsRow sixteen_bits_rows[] = {
    {"sum", [](const Inputs& x) { return sum(x[0], {1}); }},
    {"sum of all", [](const Inputs& x) { return sum(x[0]); }},
    {"mean", [](const Inputs& x) { return mean(x[0], {0}); }},
    {"prod", [](const Inputs& x) { return prod(x[0].narrow(1, 0, 3), {1}); }},
    {"amax", [](const Inputs& x) { return amax(x[0], {1}); }},
    {"amin", [](const Inputs& x) { return amin(x[0]); }},
    {"max", [](const Inputs& x) { return max(x[0], 1).values; }},
    {"var", [](const Inputs& x) { return var(x[0], {1}); }},
    {"stddev", [](const Inputs& x) { return stddev(x[0], {1}); }},
    {"stddev of all", [](const Inputs& x) { return stddev(x[0], {}, 0); }},
    {"norm", [](const Inputs& x) { return norm(x[0], {1}); }},
    {"logsumexp", [](const Inputs& x) { return logsumexp(x[0], {1}); }},
    {"cumsum", [](const Inputs& x) { return cumsum(x[0], 1); }},
    {"cumprod", [](const Inputs& x) { return cumprod(x[0].narrow(1, 0, 3), 1); }},
    {"softmax", [](const Inputs& x) { return softmax(x[0], 1); }, 2},
    {"log_softmax", [](const Inputs& x) { return log_softmax(x[0], 1); }},
    {"layer_norm", [](const Inputs& x) { return layer_norm(x[0], {5}, x[1], x[1]); }},
    {"rms_norm", [](const Inputs& x) { return rms_norm(x[0], x[1]); }},
    {"batch_norm", [](const Inputs& x) { return batch_norm(x[0], x[1], x[1], {}, {}, true); }},
    {"mse_loss", [](const Inputs& x) { return mse_loss(half_of(x[0], true), half_of(x[0], false)); }},
    {"mse_loss sum",
     [](const Inputs& x) { return mse_loss(half_of(x[0], true), half_of(x[0], false), Reduction::sum); }},
    {"mse_loss none",
     [](const Inputs& x) { return mse_loss(half_of(x[0], true), half_of(x[0], false), Reduction::none); }},
    {"l1_loss", [](const Inputs& x) { return l1_loss(half_of(x[0], true), half_of(x[0], false)); }},
    {"smooth_l1_loss", [](const Inputs& x) { return smooth_l1_loss(half_of(x[0], true), half_of(x[0], false), 0.01); }},
    {"huber_loss", [](const Inputs& x) { return huber_loss(half_of(x[0], true), half_of(x[0], false), 0.5); }},
    {"huber_loss none",
     [](const Inputs& x) { return huber_loss(half_of(x[0], true), half_of(x[0], false), 40, Reduction::none); }},
    {"bce_with_logits", [](const Inputs& x) { return bce_with_logits(half_of(x[0], true), x[2], {}, {}); }},
    {"kl_div", [](const Inputs& x) { return kl_div(half_of(x[0], true), x[2]); }},
    {"kl_div log", [](const Inputs& x) { return kl_div(half_of(x[0], true), x[3], KlReduction::sum, true); }},
    {"cross_entropy", [](const Inputs& x) { return cross_entropy(x[0], labels()); }},
    {"cross_entropy sum", [](const Inputs& x) { return cross_entropy(x[0], labels(), {.reduction = Reduction::sum}); }},
    {"cross_entropy probabilities", [](const Inputs& x) { return cross_entropy(half_of(x[0], true), x[2]); }},
    {"nll_loss", [](const Inputs& x) { return nll_loss(x[0], labels()); }},
};

/// "" if `got` is `exact` rounded to its dtype; else the first difference.
std::string difference(const Tensor& got, const Tensor& exact, double slack) {
  const std::vector<double> a = got.to(cpu).to(f64).contiguous().to_vector<double>(),
                            b = exact.to(cpu).contiguous().to_vector<double>();
  const bool is_half = got.dtype() == f16, is_wide = got.dtype() == f32;
  const double epsilon = is_wide   ? 0x1p-22
                         : is_half ? 0x1p-11
                                   : 0x1p-8,
               largest = is_half ? 65504 : 3.38e38, smallest = is_half ? 0x1p-25 : 0x1p-134;
  double reach = 0;
  for (const double y : b)
    if (std::isfinite(y)) reach = std::max(reach, std::abs(y));
  for (size_t i = 0; i < a.size(); ++i) {
    const bool too_large = !(std::abs(b[i]) <= largest);
    if (too_large && (std::isinf(a[i]) || std::abs(a[i]) >= largest * 0.99)) continue;
    if (!too_large &&
        std::abs(a[i] - b[i]) <= 2.02 * epsilon * std::abs(b[i]) + 4e-6 * reach + slack * epsilon + 1.01 * smallest)
      continue;
    return str("element ", i, ": ", a[i], ", expected ", b[i]);
  }
  return "";
}

}  // namespace

TEST_CASE("f16 and bf16: reductions, norms and losses are computed wide and rounded once, whatever the magnitude") {
  for (const SixteenBitsRow& row : sixteen_bits_rows) {
    for (const DType dtype : {f16, bf16}) {
      for (const double magnitude : {1e-7, 1e-5, 1e-3, 0.1, 1., 20., 300., 6000., 3e4}) {
        manual_seed(11);
        Inputs low, exact;
        const auto draw = [](const Shape& shape, double max_value) {
          return sampled(shape, -max_value, max_value).tensor();
        };
        const Tensor probabilities = softmax(draw({3, 5}, 2), 1);
        for (const Tensor& values : {draw({6, 5}, 2 * magnitude), draw({5}, 1), probabilities, log(probabilities)}) {
          const Tensor rounded = values.to(dtype);
          low.push_back(Variable(rounded, true));
          exact.push_back(Variable(rounded.to(f64), true));
        }
        INFO("name ", row.name, ", dtype ", dtype, ", magnitude ", magnitude);
        const Variable y = row.fn(low), y_exact = row.fn(exact);
        // cross_entropy of class indices returns f32
        CHECK((y.dtype() == dtype || row.name.starts_with("cross_entropy")));
        CHECK(difference(y.tensor(), y_exact.tensor(), 0) == "");
        const Tensor up_low = sampled(y.shape(), 0.5, 2).tensor().to(y.dtype());
        y.backward(up_low);
        y_exact.backward(up_low.to(f64));
        for (size_t i = 0; i < low.size(); ++i) {
          if (!low[i].grad().defined()) continue;
          CAPTURE(i);
          CHECK(difference(low[i].grad(), exact[i].grad(), row.slack) == "");
        }
      }
    }
  }
}

TEST_CASE("intermediate numbers may be larger or smaller than the result") {
  const auto deviation = [](const std::vector<double>& values, DType dtype) {
    return stddev(Tensor::from(values, {int64_t(values.size())}).to(dtype)).item();
  };
  CHECK(deviation({0, 1000}, f16) == 707);
  CHECK(deviation({1e-4, 2e-4, 4e-4}, f16) == doctest::Approx(1.527e-4).epsilon(2e-3));
  CHECK(deviation({0, 3e19}, f32) == doctest::Approx(2.1213203e19));
  // The gradient is shared by more equal maxima than f16 can count.
  const Variable x(ones({100000}, {.dtype = f16}), true);
  amax(x).backward();
  CHECK(x.grad().to(f32).narrow(0, 0, 1).item() == doctest::Approx(1e-5).epsilon(2e-2));
  const Variable far(Tensor::from({60000., -60000.}, {2}).to(f16), true), zero(zeros({2}, {.dtype = f16}), true);
  huber_loss(far, neg(far).detach(), 2, Reduction::sum).backward();
  CHECK(far.grad().to(f64).to_vector<double>() == std::vector<double>{2, -2});
}
