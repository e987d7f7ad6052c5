// Complex numbers on the tape. Gradients pass through the views between (re, im) pairs and complex numbers; everything
// else is composed of real operations. The gradient is thus d loss / d re + i d loss / d im.
#include "tensor/complex.h"
#include "autograd/ops.h"
#include "autograd/recorded.h"

namespace lockstep {
namespace {

const Tensor& tensor_in(const Variable& x) { return x.tensor(); }

/// Turns a gradient of (re, im) pairs into one of complex numbers.
template <class T> T numbers_from(const T& pairs) {
  return view_as_complex(can_view_as_complex(bare(pairs)) ? pairs : pairs.clone());
}

}  // namespace

Variable view_as_real(const Variable& x) {
  Tensor out = view_as_real(x.tensor());
  if (!needs_grad({&x})) return as_view(x, std::move(out));
  return as_view(
      x, record("view_as_real", {&x}, std::move(out), [](auto& back) { back.give(0, numbers_from(back.grad())); }));
}

Variable view_as_complex(const Variable& x) {
  Tensor out = view_as_complex(x.tensor());
  if (!needs_grad({&x})) return as_view(x, std::move(out));
  return as_view(
      x, record("view_as_complex", {&x}, std::move(out), [](auto& back) { back.give(0, view_as_real(back.grad())); }));
}

Variable angle(const Variable& x) {
  return on_tape("angle", {&x}, angle(x.tensor()), [x = Saved(x)](auto& back) {
    const auto z = back.input(0, x);
    auto length = sum(square(view_as_real(z)), {-1});
    const Tensor none = eq(bare(length), zeros_like(bare(length)));
    length = masked_fill(length, none, 1);
    const auto share = masked_fill(div(back.grad(), length), none, 0);
    back.give(0, complex(neg(mul(imag(z), share)), mul(real(z), share)));
  });
}

}  // namespace lockstep

#define Value Variable
#include "tensor/complex.inc"
#undef Value
