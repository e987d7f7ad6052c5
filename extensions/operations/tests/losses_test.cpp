// Losses at very small and very large numbers, and rejected calls. Their values are golden cases.
#include "extensions/operations/losses.h"

#include <doctest/doctest.h>

#include "tests/messages.h"

using namespace lockstep;

TEST_CASE("losses of very small and very large numbers") {
  for (const DType dtype : {f32, f64}) {
    const double by = dtype == f32 ? 1e-40 : 1e-310;  // a beta whose reciprocal is infinite
    const TensorOptions like{.dtype = dtype};
    const Variable d(full({1}, by / 10, like), true);  // 0.5 / beta is infinite and d^2 is 0
    const Variable loss = smooth_l1_loss(d, zeros({1}, like), by);
    CHECK(loss.item() == doctest::Approx(0).epsilon(by));
    loss.backward();
    CHECK(d.grad().item() == doctest::Approx(0.1).epsilon(1e-3));
  }
  const Variable far(Tensor::from({60000., -60000.}, {2}).to(f16), true);
  huber_loss(far, neg(far).detach(), 2, Reduction::sum).backward();
  CHECK(far.grad().to(f64).to_vector<double>() == std::vector<double>{2, -2});
}

TEST_CASE("losses: wrong calls") {
  const Variable x(randn({64, 5}), true), two(randn({2, 5}));
  const Tensor labels = Tensor::from<int64_t>({0, 5}, {2});
  CHECK_ERROR_IS(nll_loss(two, labels),
                 default_device().is_cpu()
                     ? "[nll_loss] expected targets in [0, 5), got 5 in row 1; correct the targets"
                     : "[gather] expected indices in [0, 5), got 5 at position 1; correct the indices");
  CHECK_ERROR_IS(huber_loss(x, x, 0), "[huber_loss] expected delta > 0, got 0");
  CHECK_ERROR_IS(l1_loss(x, two),
                 "[l1_loss] expected x and target of one shape, got (64, 5) and (2, 5); reshape one of them");
}
