// A build with the extension computes convolutions on the device by cuDNN: nothing else would notice its loss.
// tests/cuda/images_test.cpp compares many more shapes with the CPU.
#include <doctest/doctest.h>

#include "base/environment.h"
#include "tensor/conv_backend.h"
#include "tensor/ops.h"
#include "tensor/random.h"

using namespace lockstep;

namespace {

constexpr Device device{Device::Type::cuda, 0};

/// The library for CUDA devices in the list of this build.
const ConvBackend& library() {
  const ConvBackend* found = nullptr;
  for (const ConvBackend& one : conv_backends())
    if (one.device == Device::Type::cuda) found = &one;
  REQUIRE(found != nullptr);
  return *found;
}

bool same_bits(const Tensor& a, const Tensor& b) { return a.to_vector<double>() == b.to_vector<double>(); }

}  // namespace

TEST_CASE("cuda: cudnn computes conv2d and its gradients, unless LOCKSTEP_CUDNN is 0") {
  const bool used = environment("LOCKSTEP_CUDNN").value_or("1") != "0";
  manual_seed(1);
  const ConvArgs args{.padding = {1, 1}};
  Tensor none;
  for (const DType dtype : {f32, f16, bf16}) {
    INFO("dtype ", dtype);
    const TensorOptions options{.dtype = dtype, .device = device};
    const Tensor x = randn({8, 64, 28, 28}, options), w = randn({64, 64, 3, 3}, options), bias = randn({64}, options),
                 grad = randn(x.shape(), options);
    Tensor y = empty(x.shape(), options), grad_x = empty(x.shape(), options), grad_w = empty(w.shape(), options),
           grad_bias = empty({64}, options);
    REQUIRE(library().forward(x, w, bias, args, y) == used);
    REQUIRE(library().grad_input(grad, w, args, grad_x) == used);
    REQUIRE(library().grad_weight(grad, x, args, grad_w, none) == used);
    CHECK_FALSE(library().grad_weight(grad, x, args, grad_w, grad_bias));
    if (!used) continue;
    // The bits are the library's. The built-in kernels add in another order, so some of these sums would differ.
    CHECK(same_bits(conv2d(x, w, bias, args), y));
    CHECK(same_bits(conv2d_grad_input(grad, w, x.shape(), args), grad_x));
    CHECK(same_bits(conv2d_grad_weight(grad, x, w.shape(), args, true).weight, grad_w));
  }
}

TEST_CASE("cuda: cudnn refuses convolutions in f64") {
  const TensorOptions options{.dtype = f64, .device = device};
  const Tensor x = ones({2, 3, 5, 5}, options), w = ones({4, 3, 3, 3}, options);
  Tensor y = zeros({2, 4, 3, 3}, options), none;
  CHECK_FALSE(library().forward(x, w, none, {}, y));
  CHECK(same_bits(y, zeros(y.shape(), options)));
}

TEST_CASE("cuda: the fact about cudnn for `lockstep env` is its version") {
  const auto facts = library().facts();
  REQUIRE(facts.size() == 1);
  CHECK(facts[0].first == "cuDNN");
  CHECK_FALSE(facts[0].second.empty());
}
