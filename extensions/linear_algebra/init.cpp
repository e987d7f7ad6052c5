// Initialisation by orthogonal matrices. See init.h.
#include "extensions/linear_algebra/init.h"

#include <algorithm>

#include "extensions/linear_algebra/linalg.h"
#include "nn/init.h"
#include "tensor/ops.h"

namespace lockstep::nn::init {

void orthogonal(const Variable& w, double gain) {
  fan(w.shape());
  apply(
      w,
      [=](const Tensor& x) {
        if (x.numel() == 0) return;
        const int64_t rows = x.size(0), columns = x.numel() / rows;
        const TensorOptions options{x.dtype() == f64 ? f64 : f32, x.device()};
        const auto [q, r] = linalg::qr(randn({std::max(rows, columns), std::min(rows, columns)}, options));
        // Without this sign correction Q is not uniformly distributed.
        const Tensor made = mul(q, mul_scalar(sign(r.diagonal()), gain));
        x.copy_((rows < columns ? made.t() : made).reshape(x.shape()));
      },
      1);
}

}  // namespace lockstep::nn::init
