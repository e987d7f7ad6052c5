// Layers of volumes, pooling and resampling: options, shapes, training. Their values are golden cases.
#include <doctest/doctest.h>

#include "autograd/gradcheck.h"
#include "extensions/vision/vision.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/messages.h"
#include "tests/nn/properties.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace lockstep::nn;

TEST_CASE("layers of volumes, pooling and resampling: options, shapes, and a model of them learns") {
  const Threads one(1);
  manual_seed(44);
  Sequential net(Conv3d({.in = 1, .out = 4, .kernel = {1, 3, 3}, .padding = {0, 1, 1}}), ReLU(),
                 MaxPool3d({.kernel = 2}), ConvTranspose3d({.in = 4, .out = 2, .kernel = 2, .stride = 2}),
                 AvgPool3d({.kernel = {2, 1, 2}}), Upsample({.size = {2, 3, 3}, .mode = Resampling::linear}),
                 AdaptiveMaxPool3d({.output = {1, 2, 2}}), Flatten(), Linear({.in = 8, .out = 2}));
  const Tensor x = randn({6, 1, 4, 4, 4}), target = Tensor::from<int64_t>({0, 1, 0, 1, 1, 0});
  optim::Adam optimizer(net.parameters(), {.lr = 3e-2});
  // Simulated devices are slow: on them it is enough that the loss falls.
  const bool on_cpu = default_device().is_cpu();
  const auto [first, last] =
      testing::first_and_last(optimizer, on_cpu ? 60 : 5, [&] { return cross_entropy(net(x), target); });
  CHECK(last < (on_cpu ? 0.3 : 1) * first);
  CHECK(contains(summary(net), "in 1, out 4, kernel (1, 3, 3), stride (1, 1, 1), padding (0, 1, 1)"));
  Sequential line(ConvTranspose1d({.in = 2, .out = 3, .stride = 2}), MaxPool1d(), AvgPool1d({.kernel = 3, .stride = 1}),
                  LPPool1d({.p = 2, .kernel = 2}), AdaptiveAvgPool1d({.output = 4}), Upsample({.scale = {2}}));
  CHECK(line(randn({2, 2, 9})).shape() == Shape{2, 3, 8});
  Sequential image(Unfold({.kernel = {2, 2}, .stride = {2, 2}}),
                   Fold({.size = {4, 4}, .kernel = {2, 2}, .stride = {2, 2}}));
  const Tensor pixels = randn({1, 2, 4, 4});
  CHECK(equal(image(pixels).tensor(), pixels));
  MaxPool2d pool;
  const auto [values, indices] = pool.with_indices(pixels);
  const Tensor back = MaxUnpool2d()(values, indices).tensor();
  CHECK(back.shape() == Shape{1, 2, 4, 4});
  CHECK(sum(back).item() == doctest::Approx(sum(values).item()));
  CHECK(equal(pool(back + 0.0).tensor(), maximum(values.tensor(), zeros_like(values.tensor()))));
}

TEST_CASE("layers: LocalResponseNorm has a gradient, works in 16 bits, and rejects invalid options") {
  manual_seed(14);
  LocalResponseNorm layer({.size = 3, .alpha = 0.3});
  const Variable x(randn({2, 4, 3}, {.dtype = f64}), true);
  CHECK(gradcheck([&](const std::vector<Variable>& in) { return layer(in[0]); }, {x}) == "");
  for (const DType dtype : {f16, bf16}) {
    const Tensor low = x.tensor().to(dtype);
    CHECK(layer(low).dtype() == dtype);
    CHECK(allclose(layer(low).tensor().to(f32), layer(low.to(f32)).tensor(), 0.02, dtype == f16 ? 1e-2 : 6e-2));
  }
  CHECK_ERROR(LocalResponseNorm({.size = 0}), "[LocalResponseNorm] expected size > 0, got 0");
  CHECK_ERROR(LocalResponseNorm({.size = 2})(zeros({2, 3})),
              "expected input (N, C, ...) of at least 3 dims, got (2, 3)");
}
