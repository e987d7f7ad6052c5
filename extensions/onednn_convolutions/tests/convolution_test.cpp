// A build with the extension computes convolutions of f32 on the CPU by oneDNN: nothing else would notice its loss.
// tests/tensor/conv_test.cpp compares many more shapes with plain loops.
#include <doctest/doctest.h>

#include <vector>

#include "tensor/conv_backend.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tests/devices.h"

using namespace lockstep;

namespace {

/// The library for the CPU in the list of this build.
const ConvBackend& library() {
  const ConvBackend* found = nullptr;
  for (const ConvBackend& one : conv_backends())
    if (one.device == Device::Type::cpu) found = &one;
  REQUIRE(found != nullptr);
  return *found;
}

void check_close(const Tensor& a, const Tensor& b) {
  const auto left = a.to_vector<double>(), right = b.to_vector<double>();
  REQUIRE(left.size() == right.size());
  for (size_t i = 0; i < left.size(); ++i) REQUIRE(left[i] == doctest::Approx(right[i]).epsilon(1e-4));
}

}  // namespace

TEST_CASE("onednn: conv2d and its gradients are what the library computes") {
  const OnCpu on_cpu;
  manual_seed(1);
  const Tensor x = randn({9, 16, 12, 12}), w = randn({32, 16, 3, 3}), bias = randn({32}), grad = randn({9, 32, 12, 12});
  const ConvArgs args{.padding = {1, 1}};
  Tensor y = empty(grad.shape()), grad_x = empty(x.shape()), grad_w = empty(w.shape()), grad_bias = empty({32});
  const bool forward = library().forward(x, w, bias, args, y);
  const bool grad_input = library().grad_input(grad, w, args, grad_x);
  const bool grad_weight = library().grad_weight(grad, x, args, grad_w, grad_bias);
#if defined(__x86_64__)  // for other processors oneDNN may have no fast kernel
  REQUIRE((forward && grad_input && grad_weight));
#endif
  // The bits are the library's. The built-in kernels add in another order, so some of these sums would differ.
  if (forward) {
    CHECK(conv2d(x, w, bias, args).to_vector<float>() == y.to_vector<float>());
    check_close(y, conv2d(x.to(f64), w.to(f64), bias.to(f64), args));
  }
  if (grad_input) {
    CHECK(conv2d_grad_input(grad, w, x.shape(), args).to_vector<float>() == grad_x.to_vector<float>());
    check_close(grad_x, conv2d_grad_input(grad.to(f64), w.to(f64), x.shape(), args));
  }
  if (grad_weight) {
    const WeightBiasGrad both = conv2d_grad_weight(grad, x, w.shape(), args, true);
    CHECK(both.weight.to_vector<float>() == grad_w.to_vector<float>());
    CHECK(both.bias.to_vector<float>() == grad_bias.to_vector<float>());
    const WeightBiasGrad exact = conv2d_grad_weight(grad.to(f64), x.to(f64), w.shape(), args, true);
    check_close(grad_w, exact.weight);
    check_close(grad_bias, exact.bias);
  }
}

TEST_CASE("onednn: f64 is refused, and nothing is written") {
  const OnCpu on_cpu;
  const Tensor x = ones({2, 3, 5, 5}, {.dtype = f64}), w = ones({4, 3, 3, 3}, {.dtype = f64});
  Tensor y = zeros({2, 4, 3, 3}, {.dtype = f64}), grad_x = zeros(x.shape(), {.dtype = f64}),
         grad_w = zeros(w.shape(), {.dtype = f64}), none;
  CHECK_FALSE(library().forward(x, w, none, {}, y));
  CHECK_FALSE(library().grad_input(ones(y.shape(), {.dtype = f64}), w, {}, grad_x));
  CHECK_FALSE(library().grad_weight(ones(y.shape(), {.dtype = f64}), x, {}, grad_w, none));
  for (const Tensor& unchanged : {y, grad_x, grad_w})
    CHECK(unchanged.to_vector<double>() == std::vector<double>(size_t(unchanged.numel())));
}

TEST_CASE("onednn: the facts for `lockstep env` are its version and its instructions") {
  const auto facts = library().facts();
  REQUIRE(facts.size() == 2);
  CHECK(facts[0].first == "oneDNN");
  CHECK((facts[0].second.starts_with("2.") || facts[0].second.starts_with("3.")));
  CHECK(facts[1].first == "oneDNN_instructions");
  CHECK_FALSE(facts[1].second.empty());
}
