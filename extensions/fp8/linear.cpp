// Linear maps in 8-bit floats: casts, products and their gradients. See linear.h.
#include "extensions/fp8/linear.h"

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/tape.h"

namespace lockstep {
namespace {

constexpr const char *fp8_name = "linear_fp8", *rows_name = "row_linear_fp8";

Tensor fp8_rows(const Tensor& x) {
  return x.dim() == 2 ? x.contiguous() : x.contiguous().view({x.numel() / x.size(-1), x.size(-1)});
}

bool is_castable(const Variable& x) { return is_floating(x.dtype()) && x.dtype() != f64; }

Fp8Cast cast(const Tensor& values, const Fp8Scales::Of& of, bool notes, bool straight, bool turned) {
  return cast_fp8(values, {.format = of.format,
                           .scale = of.scale,
                           .amax = notes ? of.amax : Tensor(),
                           .straight = straight,
                           .turned = turned});
}

/// The values that backward needs for a product that is computed in chunks of rows (nn::RowProduct).
struct KeptRows {
  Saved turned, w;  // turned: the transposed codes of x
  std::array<Fp8Scales::Of, 3> of;
  Saved scale_x, scale_w;
  DType dtype, wide;  // of the gradients of x and w
};

/// Computes the gradients of a product that is computed in chunks of rows.
class RowsInFp8 : public nn::RowGradients {
 public:
  RowsInFp8(Backward& back, const KeptRows& kept, int64_t chunks)
      : kept_(kept), wants_x_(back.needs(0)), wants_turned_(back.needs(1) && chunks == 1) {
    kept_.scale_x.get(rows_name), kept_.scale_w.get(rows_name);  // Error if a scale changed since the forward
    const Fp8Scales::Of& of = kept_.of[size_t(Fp8Role::weight)];
    if (wants_x_) w_ = {cast(fp8_rows(back.input(1, kept_.w)), of, false, false, true).turned, of.format, of.scale_inv};
  }
  Tensor of_input(const Tensor& g, const std::function<Tensor(const Tensor&)>&, const Tensor&) override {
    const Fp8Cast made = cast(fp8_rows(g), of_g(), true, wants_x_, wants_turned_);
    turned_ = made.turned;
    if (!wants_x_) return {};
    return matmul_fp8({made.codes, of_g().format, of_g().scale_inv}, w_, {}, kept_.dtype);
  }
  Tensor of_weight(const Tensor& g) override {
    if (!turned_.defined()) turned_ = cast(fp8_rows(g), of_g(), false, false, true).turned;
    const Fp8Scales::Of& of_x = kept_.of[size_t(Fp8Role::input)];
    return matmul_fp8({turned_, of_g().format, of_g().scale_inv},
                      {kept_.turned.get(rows_name), of_x.format, of_x.scale_inv}, {}, kept_.wide);
  }

 private:
  const Fp8Scales::Of& of_g() const { return kept_.of[size_t(Fp8Role::gradient)]; }
  KeptRows kept_;
  bool wants_x_, wants_turned_;
  Fp8Matrix w_;
  Tensor turned_;
};

}  // namespace

bool Fp8Scales::takes(const Variable& x, const Variable& w) const {
  if (w.dim() != 2 || x.dim() < 1 || x.size(-1) != w.size(1) || x.numel() == 0) return false;
  const bool fits = w.size(0) % fp8_multiple == 0 && w.size(1) % fp8_multiple == 0 &&
                    x.numel() / x.size(-1) % fp8_multiple == 0 && w.numel() > 0;
  const bool is_short = Autocast::enabled() || size_of(x.dtype()) == 2;
  return fits && is_short && is_castable(x) && is_castable(w);
}

Variable Fp8Scales::linear(const nn::Product& p, const Ranks& ranks) {
  notes = p.training;
  return linear_fp8(p.x, p.weight, p.bias, p.activation, *this, ranks);
}

nn::RowProduct Fp8Scales::in_rows(const nn::Product& p) {
  notes = p.training;
  const Variable &x = p.x, &w = p.weight;
  const Of &of_x = of[size_t(Fp8Role::input)], &of_w = of[size_t(Fp8Role::weight)];
  const Fp8Cast x8 = cast(fp8_rows(x.tensor()), of_x, notes, true, needs_grad({&x, &w}) && w.requires_grad());
  const Fp8Matrix w8{cast(fp8_rows(w.tensor()), of_w, notes, true, false).codes, of_w.format, of_w.scale_inv};
  // Keeps the weight and not its cast: backward casts it again, so that ZeRO-3 may free the weight in between.
  const KeptRows kept{Saved(x8.turned),
                      x.requires_grad() ? Saved(w) : Saved(),
                      of,
                      Saved(of_x.scale_inv),
                      Saved(of_w.scale_inv),
                      x.dtype(),
                      w.dtype()};
  return {
      .name = rows_name,
      .rows = x8.codes.view(x.shape()),
      .forward =
          [w8, of_x, dtype = x.dtype()](const Tensor& rows) {
            return matmul_fp8({rows, of_x.format, of_x.scale_inv}, w8, {}, dtype);
          },
      .backward = [kept](Backward& back, int64_t chunks) { return std::make_unique<RowsInFp8>(back, kept, chunks); }};
}

Variable linear_fp8(const Variable& input, const Variable& w, const Variable& shift, Activation activation,
                    const Fp8Scales& scales, const Fp8Ranks& ranks) {
  LOCKSTEP_CHECK(w.dim() == 2 && input.dim() >= 1 && input.size(-1) == w.size(1) && input.numel() > 0,
                 "[linear_fp8] expected x (..., in), not empty, and w (out, in), got ", input.shape(), " and ",
                 w.shape(), "; reshape one of them");
  LOCKSTEP_CHECK(is_castable(input) && is_castable(w), "[linear_fp8] expected x and w in f32, f16 or bf16, got ",
                 input.dtype(), " and ", w.dtype(), "; convert them with .to(f32)");
  const Variable x = Autocast::low(input), bias = Autocast::low(shift);
  const bool recorded = needs_grad({&x, &w, &bias});
  const Fp8Scales::Of &of_x = scales[Fp8Role::input], &of_w = scales[Fp8Role::weight],
                      &of_g = scales[Fp8Role::gradient];
  const Tensor& full = ranks.full.defined() ? ranks.full : x.tensor();
  const Fp8Cast x8 = cast(fp8_rows(full), of_x, scales.notes, true, recorded && w.requires_grad());
  const Tensor w8 = cast(fp8_rows(w.tensor()), of_w, scales.notes, true, false).codes;
  Shape shape = full.shape();
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
              scale_w = Saved(of_w.scale_inv), shape = full.shape(), dtype, wide = w.dtype(),
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
