// Reductions, norms and losses in f16 and bf16 over all magnitudes, values and gradients: the f64 result, rounded once.
#include <doctest/doctest.h>

#include "tests/autograd/sixteen_bits.h"

using namespace lockstep;

namespace {

const std::vector<SixteenBitsRow> sixteen_bits_rows = {
    {"sum", [](const Inputs& x) { return sum(x[0], {1}); }},
    {"sum of all", [](const Inputs& x) { return sum(x[0]); }},
    {"mean", [](const Inputs& x) { return mean(x[0], {0}); }},
    {"amax", [](const Inputs& x) { return amax(x[0], {1}); }},
    {"amin", [](const Inputs& x) { return amin(x[0]); }},
    {"max", [](const Inputs& x) { return max(x[0], 1).values; }},
    {"var", [](const Inputs& x) { return var(x[0], {1}); }},
    {"stddev", [](const Inputs& x) { return stddev(x[0], {1}); }},
    {"stddev of all", [](const Inputs& x) { return stddev(x[0], {}, 0); }},
    {"norm", [](const Inputs& x) { return norm(x[0], {1}); }},
    {"logsumexp", [](const Inputs& x) { return logsumexp(x[0], {1}); }},
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
    {"cross_entropy", [](const Inputs& x) { return cross_entropy(x[0], labels()); }},
    {"cross_entropy sum", [](const Inputs& x) { return cross_entropy(x[0], labels(), {.reduction = Reduction::sum}); }},
    {"cross_entropy probabilities", [](const Inputs& x) { return cross_entropy(half_of(x[0], true), x[2]); }},
};

}  // namespace

TEST_CASE("f16 and bf16: reductions, norms and losses are computed wide and rounded once, whatever the magnitude") {
  check_sixteen_bits(sixteen_bits_rows);
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
}
