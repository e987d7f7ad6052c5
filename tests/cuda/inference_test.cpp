// Inference on the device: a row has the same bits beside any other rows.
#include <doctest/doctest.h>

#include "nn/nn.h"
#include "tensor/batch_invariant.h"
#include "tensor/random.h"
#include "tensor/stream.h"
#include "tests/cuda/device.h"
#if defined(SIMT_CPU)
#include "tests/cudasim/fake.h"
#endif

using namespace lockstep;
using namespace lockstep::nn;

namespace {

/// Random numbers around 0 on the device.
Tensor noise(const Shape& shape, DType dtype, uint64_t seed) {
  manual_seed(seed);
  return randn(shape, {.device = cpu}).to(dtype).to(cuda0);
}

/// A product of x (rows, in), with a result (rows, out).
struct ProductCase {
  DType dtype;
  int64_t in, out;
  bool with_bias;
  Activation activation;
  bool adds;
  int64_t max_rows;  ///< that the library's algorithms take; simulated only
  Tensor w = noise({out, in}, dtype, 2), b = with_bias ? noise({out}, dtype, 3) : Tensor();

  Tensor of(const Tensor& x) const {
    return adds ? linear_add(noise({400, out}, dtype, 4).narrow(0, 0, x.size(0)), x, w, b)
                : linear(x, w, b, activation);
  }
};

}  // namespace

TEST_CASE("batch-invariant products: a row has the same bits beside any other rows, wherever it lies") {
  [[maybe_unused]] int64_t differs = 0;
  for (const DType dtype : {f32, f64, f16, bf16})
    for (const ProductCase& p : {ProductCase{dtype, 320, 48, false, Activation::none, false, INT64_MAX},
                                 {dtype, 288, 48, true, Activation::gelu_tanh, false, 200},
                                 {dtype, 64, 7, true, Activation::silu, false, 128},
                                 {dtype, 33, 48, true, Activation::none, true, 128},
                                 {dtype, 512, 1, false, Activation::relu, false, INT64_MAX}}) {
      CAPTURE(dtype);
      CAPTURE(p.in);
      CAPTURE(p.out);
      const Tensor x = noise({400, p.in}, dtype, 1);
      const BatchInvariant scope;
      const Tensor full = p.of(x);
#if defined(SIMT_CPU)
      fake::limit_rows_of_algorithms(p.max_rows);  // beyond them the product is made in parts
#endif
      for (const int64_t rows : {1, 2, 3, 16, 17, 64, 65, 127, 128, 129, 300}) {
        CAPTURE(rows);
        const Tensor some = x.narrow(0, 0, rows), part = full.narrow(0, 0, rows).clone();
        CHECK(equal(p.of(some), part));
        CHECK(equal(p.of(some.t().clone().t()), part));  // columns of x lie one after the other
        const Tensor moved = noise({rows * p.in + 1}, dtype, 9).narrow(0, 1, rows * p.in).view({rows, p.in});
        moved.copy_(some);
        CHECK(equal(p.of(moved), part));  // at an odd address
        const BatchInvariant off(false);
        if (rows <= p.max_rows) differs += !equal(p.of(some), part);
      }
#if defined(SIMT_CPU)
      fake::limit_rows_of_algorithms(INT64_MAX);
#endif
      const Tensor many = x.narrow(0, 0, 12).view({3, 4, p.in}), right = noise({3, p.in, 5}, dtype, 5),
                   all = matmul(many, right);
      for (int64_t i = 0; i < 3; ++i)
        CHECK(equal(matmul(many[i].narrow(0, 1, 2), right[i]), all[i].narrow(0, 1, 2).clone()));
    }
#if defined(SIMT_CPU)
  CHECK(differs > 0);  // the library's free choice does not keep the promise
#endif
}

#if defined(SIMT_CPU)
TEST_CASE("plans: of cuBLASLt's candidates the first that can run is taken") {
  const Tensor x = noise({9, 40}, f32, 1), w = noise({11, 40}, f32, 2);
  for (const int64_t unusable : {0, 1, 2}) {
    fake::unusable_candidates = unusable;
    const int64_t rows = 9 - unusable;  // a shape of its own, that nobody has asked for
    const Tensor there = linear(x.narrow(0, 0, rows), w);
    fake::unusable_candidates = 0;
    CHECK(allclose(there.to(cpu), linear(x.narrow(0, 0, rows).to(cpu), w.to(cpu)), 1e-5, 1e-5));
  }
}
#endif
