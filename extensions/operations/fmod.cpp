// fmod(): the remainder with the sign of the dividend, from remainder(), which has the sign of the divisor.
#include "autograd/recorded.h"
#include "extensions/operations/operations.h"
#include "tensor/ops_common.h"

namespace lockstep {

Tensor fmod(const Tensor& a, const Tensor& b) {
  check_defined("fmod", a);
  check_defined("fmod", b);
  check_same_dtype("fmod", a, b);
  check_same_device("fmod", a, b);
  LOCKSTEP_CHECK(a.dtype() != boolean && !is_complex(a.dtype()), "[fmod] expected a floating or integer dtype, got ",
                 a.dtype(), "; convert it with .to(f32)");
  if (is_floating(a.dtype())) {
    const Tensor left = remainder(abs(a), abs(b));  // exact, because no sign is corrected
    // A remainder of 0 keeps the sign of a, too: a * 0 is -0 for a negative a.
    return where(left == 0, a * 0, where(a < 0, neg(left), left));
  }
  LOCKSTEP_CHECK(all(b).item<bool>(), "[fmod] expected a divisor without zeros, got a 0 among ", b.dtype(), " ",
                 b.shape(), "; replace the zeros, or divide in floating point");
  const Tensor left = remainder(a, b);
  return where(logical_and(left != 0, (a < 0) != (b < 0)), sub(left, b), left);
}

Variable fmod(const Variable& a, const Variable& b) {
  return on_tape("fmod", {&a, &b}, fmod(a.tensor(), b.tensor()), [a = Saved(a), b = Saved(b)](auto& back) {
    if (back.needs(0)) back.give(0, back.grad());
    if (!back.needs(1)) return;
    const Tensor &dividend = a.get("fmod"), &divisor = b.get("fmod");
    const Tensor quotient = round(div(sub(dividend, fmod(dividend, divisor)), divisor));  // constant between its jumps
    back.give(1, neg(mul(back.grad(), quotient)));
  });
}

}  // namespace lockstep
