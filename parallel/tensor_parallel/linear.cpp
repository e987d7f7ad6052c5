// Column- and row-parallel linear maps, in ordinary and 8-bit floats. See linear.h.
#include "parallel/tensor_parallel/linear.h"

#include "autograd/autocast.h"
#include "autograd/fp8.h"
#include "autograd/tape.h"
#include "autograd/unary_grad.h"
#include "nn/linear.h"
#include "parallel/tensor_parallel/overlap.h"
#include "tensor/flops.h"
#include "tensor/ops.h"
#include "tensor/quantized.h"

namespace lockstep::tensor_parallel {
namespace {

Tensor tensor_or_none(const Variable& x) { return x.defined() ? x.tensor() : Tensor(); }

void check_input(const char* op, const Variable& x, const Variable& w, bool sequence) {
  LOCKSTEP_CHECK(w.dim() == 2, "[", op, "] expected a weight (out, in), got ", w.shape());
  LOCKSTEP_CHECK(x.dim() >= (sequence ? 2 : 1) && x.size(-1) == w.size(1), "[", op, "] expected x (",
                 sequence ? "..., T, " : "..., ", w.size(1), "), got ", x.shape());
}

/// Returns the weight in floating point. Dequantises a quantised weight once, because several products will read it.
Tensor in_numbers(const Tensor& w, DType dtype) {
  const QuantizedHandle* const codes = quantized_of(w);
  return codes ? dequantize(codes->weight, dtype) : w;
}

/// linear() of `rows`, written to `place`, which need not be contiguous.
void linear_at(const Tensor& place, const Tensor& pre, const Tensor& rows, const Tensor& w, const Tensor& bias,
               Activation activation) {
  if (place.is_contiguous()) return linear_into(place, rows, w, bias, activation, pre);
  Tensor before;
  place.copy_(linear(rows, w, bias, activation, pre.defined() ? &before : nullptr).view(place.shape()));
  if (pre.defined()) pre.copy_(before.view(pre.shape()));
}

/// Keeps a gathered gradient for a split backward (autograd/split_backward.h), which computes the weight's gradient
/// later.
struct Gathered {
  Saved part;
  Tensor whole;
  bool is_of(const Tensor& g) const { return whole.defined() && part.get().raw_data() == g.raw_data(); }
  Tensor keep(const Tensor& g, Tensor all, bool keeps) {
    part = keeps ? Saved(g) : Saved(), whole = keeps ? all : Tensor();
    return all;
  }
};

Variable row_product(const Variable& input, const Variable& weight, const RowOptions& options,
                     dist::ProcessGroup& group) {
  const Variable x = Autocast::low(input), w = Autocast::low(weight);
  const int64_t asked = options.overlap ? options.chunks : 1;
  const Chunks chunks(x.shape(), options.sequence, asked, x.device(), group);
  Tensor out = sum_of_products(x.tensor(), chunks, group, false, [&](const Tensor& rows) {
                 return linear(rows, w.tensor());
               }).wait();
  if (!needs_grad({&x, &w})) return out;
  const Saved kept_x = w.requires_grad() ? Saved(x) : Saved(), kept_w = x.requires_grad() ? Saved(w) : Saved();
  return record("row_linear", {&x, &w}, std::move(out),
                [x = kept_x, w = kept_w, shape = x.shape(), sequence = options.sequence, asked, &group,
                 gathered = Gathered()](Backward& back) mutable {
                  const char* const name = "row_linear";
                  const bool wants_x = back.needs(0), wants_w = back.needs(1);
                  const Chunks chunks(shape, sequence, sequence && wants_x ? asked : 1, back.grad().device(), group);
                  const UnaryGrad* const before = wants_x ? back.fold(0) : nullptr;
                  const Tensor weight = wants_x ? in_numbers(w.get(name), back.grad().dtype()) : Tensor(),
                               kept = before ? before->kept.get(before->name).contiguous() : Tensor();
                  Tensor grad_x;
                  const auto multiply = [&](const Tensor& g, int64_t i) {
                    if (!wants_x) return;
                    const auto product = [&] {
                      return before ? matmul_unary_grad(g, weight, before->op, before->args,
                                                        as_matrix(chunks.of_whole(kept, i)))
                                    : matmul(g, weight);
                    };
                    if (chunks.count() == 1) return void(grad_x = product().view(shape));
                    if (!grad_x.defined()) grad_x = empty(shape, {.dtype = g.dtype(), .device = g.device()});
                    const Tensor place = chunks.of_whole(grad_x, i);
                    if (before || chunks.apart()) return void(place.copy_(product().view(place.shape())));
                    matmul_into(place.view({g.size(0), weight.size(1)}), g, weight);
                    MacCounter::add(g.numel() * weight.size(1));
                  };
                  Tensor g = back.grad();
                  if (!sequence) multiply(as_matrix(g), 0);
                  else if (gathered.is_of(g)) multiply(as_matrix(g = gathered.whole), 0);
                  else g = gathered.keep(g, use_gathered(g, chunks, group, x.defined(), multiply), !wants_w);
                  if (wants_x) back.give(0, std::move(grad_x));
                  if (wants_w) back.give(1, matmul(as_matrix(g).t(), as_matrix(x.get(name))));
                });
}

/// row_product() in 8-bit floats. Casts x and the weight once. Each chunk of the product then reads some rows of the
/// cast x.
Variable row_product_fp8(const Variable& input, const Variable& weight, const RowOptions& options,
                         dist::ProcessGroup& group, const Fp8Scales& scales) {
  const Variable x = Autocast::low(input);
  const Fp8Scales::Of &of_x = scales[Fp8Role::input], &of_w = scales[Fp8Role::weight],
                      &of_g = scales[Fp8Role::gradient];
  const auto cast = [](const Tensor& values, const Fp8Scales::Of& of, bool notes, bool straight, bool turned) {
    return cast_fp8(as_matrix(values).contiguous(), {.format = of.format,
                                                     .scale = of.scale,
                                                     .amax = notes ? of.amax : Tensor(),
                                                     .straight = straight,
                                                     .turned = turned});
  };
  const int64_t asked = options.overlap ? options.chunks : 1;
  const bool recorded = needs_grad({&x, &weight});
  const Fp8Cast x8 = cast(x.tensor(), of_x, scales.notes, true, recorded && weight.requires_grad());
  const Fp8Matrix w8{cast(weight.tensor(), of_w, scales.notes, true, false).codes, of_w.format, of_w.scale_inv};
  const Chunks chunks(x.shape(), options.sequence, asked, x.device(), group, fp8_multiple);
  Tensor out = sum_of_products(x8.codes.view(x.shape()), chunks, group, false, [&](const Tensor& rows) {
                 return matmul_fp8({rows, of_x.format, of_x.scale_inv}, w8, {}, x.dtype());
               }).wait();
  if (!recorded) return out;
  // Keeps the weight and not its cast: backward casts it again, so that ZeRO-3 may free the weight in between.
  const Saved kept_w = x.requires_grad() ? Saved(weight) : Saved();
  return record("row_linear_fp8", {&x, &weight}, std::move(out),
                [x8 = Saved(x8.turned), w = kept_w, of_x, of_w, of_g, scale_x = Saved(of_x.scale_inv),
                 scale_w = Saved(of_w.scale_inv), cast, shape = x.shape(), dtype = x.dtype(), wide = weight.dtype(),
                 sequence = options.sequence, asked, &group, gathered = Gathered()](Backward& back) mutable {
                  const char* const name = "row_linear_fp8";
                  scale_x.get(name), scale_w.get(name);  // Error unless the scales are those of forward
                  const bool wants_x = back.needs(0), wants_w = back.needs(1);
                  const Chunks chunks(shape, sequence, sequence && wants_x ? asked : 1, back.grad().device(), group,
                                      fp8_multiple);
                  Tensor grad_x, turned, w8;
                  if (wants_x) w8 = cast(back.input(1, w), of_w, false, false, true).turned;
                  const auto multiply = [&](const Tensor& g, int64_t i) {
                    const Fp8Cast g8 = cast(g, of_g, true, wants_x, wants_w && chunks.count() == 1);
                    turned = g8.turned;
                    if (!wants_x) return;
                    const Tensor product = matmul_fp8({g8.codes, of_g.format, of_g.scale_inv},
                                                      {w8, of_w.format, of_w.scale_inv}, {}, dtype);
                    if (chunks.count() == 1) return void(grad_x = product.view(shape));
                    if (!grad_x.defined()) grad_x = empty(shape, {.dtype = dtype, .device = g.device()});
                    const Tensor place = chunks.of_whole(grad_x, i);
                    place.copy_(product.view(place.shape()));
                  };
                  Tensor g = back.grad();
                  if (!sequence) multiply(g, 0);
                  else if (gathered.is_of(g)) multiply(g = gathered.whole, 0);
                  else g = gathered.keep(g, use_gathered(g, chunks, group, x8.defined(), multiply), !wants_w);
                  if (wants_x) back.give(0, std::move(grad_x));
                  if (!wants_w) return;
                  if (!turned.defined()) turned = cast(g, of_g, false, false, true).turned;
                  back.give(1, matmul_fp8({turned, of_g.format, of_g.scale_inv},
                                          {x8.get(name), of_x.format, of_x.scale_inv}, {}, wide));
                });
}

}  // namespace

Variable column_linear(const Variable& input, const Variable& weight, const Variable& shift, Activation activation,
                       const ColumnOptions& options, dist::ProcessGroup& group) {
  check_input("column_linear", input, weight, options.sequence);
  if (group.size() == 1) return linear(input, weight, shift, activation);
  if (Fp8Scope::current()) {
    const Variable x = Autocast::low(input);
    const Tensor whole = options.sequence ? Pending::all_gather(x.tensor(), along_sequence, group).wait() : x.tensor();
    if (const Fp8Scales* const scales = Fp8Scope::for_product(whole, weight)) {
      const auto sum_up = [options, &group](const Tensor& mine) -> std::function<Tensor()> {
        Pending sum = options.sequence ? Pending::reduce_scatter(mine, along_sequence, group, {}, options.overlap)
                                       : Pending::all_reduce(mine, group, options.overlap);
        return [sum]() mutable { return sum.wait(); };
      };
      const Variable out = linear_fp8(x, weight, shift, activation, *scales, {whole, sum_up});
      return options.gather_output ? gather_from(out, -1, group) : out;
    }
  }
  const Variable x = Autocast::low(input), w = Autocast::low(weight), bias = Autocast::low(shift);
  const bool recorded = needs_grad({&x, &w, &bias});
  const int64_t asked = options.overlap ? options.chunks : 1;
  // relu's derivative reads the output, the other derivatives read the pre-activation (as in autograd/ops_matmul.cpp).
  const bool reads_pre = recorded && activation != Activation::none && activation != Activation::relu;
  Shape shape = x.shape();
  Tensor out, pre;
  if (options.sequence) {
    shape[x.dim() - 2] *= group.size();
    const Chunks chunks(shape, true, asked, x.device(), group);
    const TensorOptions like{x.dtype(), x.device()};
    out = empty(chunks.whole_shape(w.size(0)), like);
    if (reads_pre) pre = empty(out.shape(), like);
    use_gathered(x.tensor(), chunks, group, false, [&](const Tensor& rows, int64_t i) {
      linear_at(chunks.of_whole(out, i), reads_pre ? chunks.of_whole(pre, i) : Tensor(), rows, w.tensor(),
                tensor_or_none(bias), activation);
    });
  } else {
    out = linear(x.tensor(), w.tensor(), tensor_or_none(bias), activation, reads_pre ? &pre : nullptr);
  }
  const auto finished = [&](const Variable& y) { return options.gather_output ? gather_from(y, -1, group) : y; };
  if (!recorded) return finished(out);
  const Saved kept = activation == Activation::relu ? Saved(out) : Saved(pre);
  const Saved kept_x = w.requires_grad() ? Saved(x) : Saved(), kept_w = x.requires_grad() ? Saved(w) : Saved();
  return finished(record(
      "column_linear", {&x, &w, &bias}, std::move(out),
      [x = kept_x, w = kept_w, kept, activation, options, asked, shape, &group](Backward& back) {
        const char* const name = "column_linear";
        // Only this rank's part of x was kept. The rest is gathered again while x's gradient is computed.
        std::optional<Pending> gathered;
        if (options.sequence && back.needs(1)) gathered = Pending::all_gather(x.get(name), along_sequence, group);
        if (activation != Activation::none) {
          using enum PointwiseOp;
          constexpr PointwiseOp ops[] = {count, relu, gelu_tanh, gelu_erf, silu};
          back.grad() = pointwise_grad(ops[int(activation)], PointwisePart::grad0, {}, back.grad(), kept.get(name), {});
        }
        const Tensor g = as_matrix(back.grad());
        std::optional<Pending> grad_x;
        if (back.needs(0)) {  // the sum overlaps with the weight's gradient if there is one, else with other chunks
          const Chunks chunks(shape, options.sequence, back.needs(1) ? 1 : asked, g.device(), group);
          const Tensor weight = in_numbers(w.get(name), g.dtype());
          grad_x = sum_of_products(g, chunks, group, options.overlap,
                                   [&](const Tensor& rows) { return matmul(rows, weight); });
          if (!options.overlap) back.give(0, grad_x->wait());
        }
        if (back.needs(1)) back.give(1, matmul(g.t(), as_matrix(gathered ? gathered->wait() : x.get(name))));
        if (back.needs(2)) back.give(2, column_sums(g));
        if (grad_x && options.overlap) back.give(0, grad_x->wait());
      }));
}

Variable row_linear(const Variable& input, const Variable& weight, const Variable& shift, Activation activation,
                    const RowOptions& options, dist::ProcessGroup& group) {
  const Variable own = options.input_is_parallel ? input : scatter_to(input, -1, group);
  check_input("row_linear", own, weight, options.sequence);
  if (group.size() == 1) return linear(own, weight, shift, activation);
  // The bias is added once, after the sum over ranks.
  const Fp8Scales* const scales = Fp8Scope::for_product(own, weight);
  Variable out =
      scales ? row_product_fp8(own, weight, options, group, *scales) : row_product(own, weight, options, group);
  if (shift.defined()) out = add(out, Autocast::low(options.sequence ? copy_to(shift, group) : shift));
  return activated(out, activation);
}

}  // namespace lockstep::tensor_parallel
