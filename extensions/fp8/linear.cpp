// Linear maps in 8-bit floats: casts, products and their gradients. See linear.h.
#include "extensions/fp8/linear.h"

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/tape.h"

namespace lockstep {
namespace {

bool is_castable(const Variable& x) { return is_floating(x.dtype()) && x.dtype() != f64; }

Fp8Cast cast(const Tensor& values, const Fp8Scales::Of& of, bool notes, bool straight, bool turned) {
  return cast_fp8(as_matrix(values), {.format = of.format,
                                      .scale = of.scale,
                                      .amax = notes ? of.amax : Tensor(),
                                      .straight = straight,
                                      .turned = turned});
}

Fp8Matrix scaled(const Tensor& codes, const Fp8Scales::Of& of) { return {codes, of.format, of.scale_inv}; }

/// The values that backward needs. Keeps the weight and not its cast: backward casts it again, so that ZeRO-3 may free
/// the weight in between.
struct Kept {
  const char* name;  // of the node on the tape
  Saved turned, w;   // turned: the transposed codes of x
  std::array<Fp8Scales::Of, 3> of;
  Saved scale_x, scale_w;
  DType dtype, wide;  // of the gradients of x and w
};

/// The operands of the product of `full` and w, cast, and what its backward needs. `full` is x, or x of all ranks.
struct Operands {
  Operands(const char* name, const Fp8Scales& scales, const Tensor& full, const Variable& x, const Variable& w) {
    const Fp8Scales::Of &of_x = scales[Fp8Role::input], &of_w = scales[Fp8Role::weight];
    const Fp8Cast x8 = cast(full, of_x, scales.notes, true, NoGrad::grad_enabled() && w.requires_grad());
    input = scaled(x8.codes, of_x);
    weight = scaled(cast(w.tensor(), of_w, scales.notes, true, false).codes, of_w);
    kept = {name,
            Saved(x8.turned),
            x.requires_grad() ? Saved(w) : Saved(),
            scales.of,
            Saved(of_x.scale_inv),
            Saved(of_w.scale_inv),
            x.dtype(),
            w.dtype()};
  }
  Fp8Matrix input, weight;
  Kept kept;
};

/// Computes the gradients of a product. Its gradient arrives in `chunks` chunks of rows.
class Fp8Gradients : public nn::RowGradients {
 public:
  Fp8Gradients(Backward& back, const Kept& kept, int64_t chunks)
      : kept_(kept), wants_x_(back.needs(0)), wants_turned_(back.needs(1) && chunks == 1) {
    kept_.scale_x.get(kept.name), kept_.scale_w.get(kept.name);  // Error if a scale changed since the forward
    const Fp8Scales::Of& of_w = of(Fp8Role::weight);
    if (wants_x_) w_ = scaled(cast(back.input(1, kept_.w), of_w, false, false, true).turned, of_w);
  }
  Tensor of_input(const Tensor& g, const std::function<Tensor(const Tensor&)>&, const Tensor&) override {
    const Fp8Scales::Of& of_g = of(Fp8Role::gradient);
    const Fp8Cast made = cast(g, of_g, true, wants_x_, wants_turned_);
    turned_ = made.turned;
    return wants_x_ ? matmul_fp8(scaled(made.codes, of_g), w_, {}, kept_.dtype) : Tensor();
  }
  Tensor of_weight(const Tensor& g) override {
    const Fp8Scales::Of& of_g = of(Fp8Role::gradient);
    w_ = {};  // frees its memory
    if (!turned_.defined()) turned_ = cast(g, of_g, false, false, true).turned;
    return matmul_fp8(scaled(turned_, of_g), scaled(kept_.turned.get(kept_.name), of(Fp8Role::input)), {}, kept_.wide);
  }

 private:
  const Fp8Scales::Of& of(Fp8Role role) const { return kept_.of[size_t(role)]; }
  Kept kept_;
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
  const Operands made("row_linear_fp8", *this, p.x.tensor(), p.x, p.weight);
  return {
      .name = made.kept.name,
      .rows = made.input.codes.view(p.x.shape()),
      .forward = [w = made.weight, of_x = of[size_t(Fp8Role::input)],
                  dtype = p.x.dtype()](const Tensor& rows) { return matmul_fp8(scaled(rows, of_x), w, {}, dtype); },
      .backward = [kept = made.kept](Backward& back,
                                     int64_t chunks) { return std::make_unique<Fp8Gradients>(back, kept, chunks); }};
}

Variable linear_fp8(const Variable& input, const Variable& w, const Variable& shift, Activation activation,
                    const Fp8Scales& scales, const nn::Arithmetic::Ranks& ranks) {
  LOCKSTEP_CHECK(w.dim() == 2 && input.dim() >= 1 && input.size(-1) == w.size(1) && input.numel() > 0,
                 "[linear_fp8] expected x (..., in), not empty, and w (out, in), got ", input.shape(), " and ",
                 w.shape(), "; reshape one of them");
  LOCKSTEP_CHECK(is_castable(input) && is_castable(w), "[linear_fp8] expected x and w in f32, f16 or bf16, got ",
                 input.dtype(), " and ", w.dtype(), "; convert them with .to(f32)");
  const Variable x = Autocast::low(input), bias = Autocast::low(shift);
  const Tensor& full = ranks.full.defined() ? ranks.full : x.tensor();
  const Operands made("linear_fp8", scales, full, x, w);
  Shape shape = full.shape();
  shape[x.dim() - 1] = w.size(0);
  const Tensor out =
      matmul_fp8(made.input, made.weight, bias.defined() ? bias.tensor() : Tensor(), x.dtype()).view(shape);
  if (!needs_grad({&x, &w, &bias})) return activated(out, activation);
  const Variable product = record(made.kept.name, {&x, &w, &bias}, out,
                                  [kept = made.kept, shape = full.shape(), sum_up = ranks.sum](Backward& back) {
                                    const bool wants_x = back.needs(0), wants_w = back.needs(1);
                                    const Tensor g = as_matrix(back.grad()).contiguous();
                                    Fp8Gradients gradients(back, kept, 1);
                                    Tensor grad_x;
                                    std::function<Tensor()> summed;
                                    if (wants_x || wants_w) grad_x = gradients.of_input(g, {}, {});
                                    if (wants_x) grad_x = grad_x.view(shape);
                                    if (wants_x && sum_up) summed = sum_up(grad_x);
                                    if (wants_w) back.give(1, gradients.of_weight(g));
                                    if (back.needs(2)) back.give(2, column_sums(g));
                                    if (wants_x) back.give(0, summed ? summed() : std::move(grad_x));
                                  });
  return activated(product, activation);
}

}  // namespace lockstep
