// Initialisation of parameters by orthogonal matrices.
#include <doctest/doctest.h>

#include "extensions/linear_algebra/init.h"
#include "tensor/ops.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::nn;

TEST_CASE("init::orthogonal: rows or columns at right angles, of length gain") {
  manual_seed(12);
  for (const Shape& shape : {Shape{3, 5}, Shape{6, 2}, Shape{4, 2, 3}, Shape{7, 7}, Shape{1, 1}})
    for (const DType dtype : {f32, f64}) {
      CAPTURE(shape);
      const Variable w(empty(shape, {.dtype = dtype}), true);
      init::orthogonal(w, 2);
      const Tensor m = w.tensor().reshape({shape[0], w.numel() / shape[0]}), x = m.size(0) > m.size(1) ? m.t() : m;
      CHECK(allclose(matmul(x, x.t()), eye(x.size(0), -1, {.dtype = dtype}) * 4.0, 1e-5, 1e-5));
    }
  // Uniform over directions: the first element is negative as often as positive.
  int above = 0;
  for (int i = 0; i < 400; ++i) {
    const Variable w(empty({2, 2}), true);
    init::orthogonal(w);
    above += w.tensor()[0][0].item() > 0;
  }
  CHECK((above > 150 && above < 250));
  CHECK_ERROR(init::orthogonal(Variable(ones({3}), true)), "[init] expected at least 2 dims");
  init::orthogonal(Variable(ones({0, 3}), true));
}
