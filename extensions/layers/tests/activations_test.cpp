// Rare activations: gradients, 16 bits, rejected calls. Values are golden cases (golden/activations.safetensors).
#include "extensions/layers/activations.h"

#include <doctest/doctest.h>

#include <cmath>

#include "autograd/gradcheck.h"
#include "nn/container.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::nn;

TEST_CASE("activations: gradients of a chain of them") {
  manual_seed(11);
  Sequential net(CELU({.alpha = 0.5}), SELU(), Softsign());
  const Variable x(randn({3, 4}, {.dtype = f64}), true);
  CHECK(gradcheck([&](const std::vector<Variable>& in) { return net(in[0]); }, {x}) == "");
}

TEST_CASE("activations: 16 bits are near f32") {
  manual_seed(14);
  const Tensor x = randn({2, 4, 4, 4});
  Sequential net(Hardshrink(), Softshrink({.lambda = 0.1}));
  for (const DType dtype : {f16, bf16}) {
    const Variable low = net(x.to(dtype));
    CHECK(low.dtype() == dtype);
    CHECK(allclose(low.tensor().to(f32), net(x.to(dtype).to(f32)).tensor(), 0.02, dtype == f16 ? 1e-2 : 6e-2));
  }
}

TEST_CASE("activations: invalid options are rejected") {
  CHECK_REJECTED(CELU, ({.alpha = 0}), "alpha > 0, got 0");
  CHECK_REJECTED(Hardtanh, ({.low = 1, .high = -1}), "low <= high, got 1 and -1");
  CHECK_REJECTED(Hardshrink, ({.lambda = -1}), "lambda >= 0, got -1");
  CHECK_REJECTED(Softshrink, ({.lambda = -1}), "lambda >= 0, got -1");
  CHECK_REJECTED(Threshold, ({.threshold = NAN, .value = 0}), "a threshold other than NaN, got nan");
  CHECK_REJECTED(Softmax2d, ()(zeros({2, 5})), "input (N, C, H, W) or (C, H, W), got (2, 5)");
  CHECK_REJECTED(AlphaDropout, ({.p = -1}), "p in [0, 1], got -1");
  CHECK_REJECTED(FeatureAlphaDropout, ()(zeros({2})), "input (N, C, ...), got (2)");
}
