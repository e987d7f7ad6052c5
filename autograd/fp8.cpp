// Linear maps in 8-bit floats: casts, products and their gradients. See fp8.h.
#include "autograd/fp8.h"

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/tape.h"

namespace lockstep {
namespace {

constexpr const char* fp8_name = "linear_fp8";

Tensor fp8_rows(const Tensor& x) {
  return x.dim() == 2 ? x.contiguous() : x.contiguous().view({x.numel() / x.size(-1), x.size(-1)});
}

bool is_castable(const Variable& x) { return is_floating(x.dtype()) && x.dtype() != f64; }

}  // namespace

const Fp8Scales* Fp8Scope::for_product(const Variable& x, const Variable& w) {
  if (!current_ || w.dim() != 2 || x.dim() < 1 || x.size(-1) != w.size(1) || x.numel() == 0) return nullptr;
  const bool fits = w.size(0) % fp8_multiple == 0 && w.size(1) % fp8_multiple == 0 &&
                    x.numel() / x.size(-1) % fp8_multiple == 0 && w.numel() > 0;
  const bool is_short = Autocast::enabled() || size_of(x.dtype()) == 2;
  return fits && is_short && is_castable(x) && is_castable(w) ? current_ : nullptr;
}

Variable linear_fp8(const Variable& input, const Variable& w, const Variable& shift, Activation activation,
                    const Fp8Scales& scales, const Fp8Ranks& ranks) {
  LOCKSTEP_CHECK(w.dim() == 2 && input.dim() >= 1 && input.size(-1) == w.size(1) && input.numel() > 0,
                 "[linear_fp8] expected x (..., in), not empty, and w (out, in), got ", input.shape(), " and ",
                 w.shape());
  LOCKSTEP_CHECK(is_castable(input) && is_castable(w), "[linear_fp8] expected x and w in f32, f16 or bf16, got ",
                 input.dtype(), " and ", w.dtype());
  const Variable x = Autocast::low(input), bias = Autocast::low(shift);
  const bool recorded = needs_grad({&x, &w, &bias});
  const auto cast = [](const Tensor& values, const Fp8Scales::Of& of, bool notes, bool straight, bool turned) {
    return cast_fp8(values, {.format = of.format,
                             .scale = of.scale,
                             .amax = notes ? of.amax : Tensor(),
                             .straight = straight,
                             .turned = turned});
  };
  const Fp8Scales::Of &of_x = scales[Fp8Role::input], &of_w = scales[Fp8Role::weight],
                      &of_g = scales[Fp8Role::gradient];
  const Tensor& whole = ranks.whole.defined() ? ranks.whole : x.tensor();
  const Fp8Cast x8 = cast(fp8_rows(whole), of_x, scales.notes, true, recorded && w.requires_grad());
  const Tensor w8 = cast(fp8_rows(w.tensor()), of_w, scales.notes, true, false).codes;
  Shape shape = whole.shape();
  shape[x.dim() - 1] = w.size(0);
  const DType dtype = x.dtype();
  const Tensor out = matmul_fp8({x8.codes, of_x.format, of_x.scale_inv}, {w8, of_w.format, of_w.scale_inv},
                                bias.defined() ? bias.tensor() : Tensor(), dtype)
                         .view(shape);
  if (!recorded) return activated(out, activation);
  // Save the weight, not its fp8 copy: then ZeRO 3 can free the weight's memory until backward, which casts it again.
  const Saved kept_w = x.requires_grad() ? Saved(w) : Saved();
  const Variable product =
      record(fp8_name, {&x, &w, &bias}, out,
             [x8 = Saved(x8.turned), w = kept_w, of_x, of_w, of_g, scale_x = Saved(of_x.scale_inv),
              scale_w = Saved(of_w.scale_inv), cast, shape = whole.shape(), dtype, wide = w.dtype(),
              sum_up = ranks.sum](Backward& back) {
               scale_x.get(fp8_name), scale_w.get(fp8_name);  // Error if a scale changed since the forward
               const Tensor g = fp8_rows(back.grad());
               std::function<Tensor()> summed;
               if (back.needs(0) || back.needs(1)) {
                 const Fp8Cast g8 = cast(g, of_g, true, back.needs(0), back.needs(1));
                 if (back.needs(0)) {
                   const Tensor w8 = cast(fp8_rows(back.input(1, w)), of_w, false, false, true).turned;
                   const Tensor grad_x =
                       matmul_fp8({g8.codes, of_g.format, of_g.scale_inv}, {w8, of_w.format, of_w.scale_inv}, {}, dtype)
                           .view(shape);
                   if (sum_up) summed = sum_up(grad_x);
                   else back.give(0, grad_x);
                 }
                 if (back.needs(1))
                   back.give(1, matmul_fp8({g8.turned, of_g.format, of_g.scale_inv},
                                           {x8.get(fp8_name), of_x.format, of_x.scale_inv}, {}, wide));
               }
               if (back.needs(2)) back.give(2, column_sums(g));
               if (summed) back.give(0, summed());
             });
  return activated(product, activation);
}

}  // namespace lockstep
