#include "parallel/tensor/linear.h"

#include "autograd/autocast.h"
#include "autograd/fp8.h"
#include "autograd/tape.h"
#include "nn/linear.h"
#include "tensor/ops.h"

namespace lockstep::tensor_parallel {
namespace {

Tensor as_matrix(const Tensor& x) {
  return x.dim() == 2 ? x : x.reshape({numel_of(Shape(x.shape().begin(), x.shape().end() - 1)), x.shape().back()});
}
Tensor tensor_or_none(const Variable& x) { return x.defined() ? x.tensor() : Tensor(); }

void check_input(const char* op, const Variable& x, const Variable& w, bool sequence) {
  LOCKSTEP_CHECK(w.dim() == 2, "[", op, "] expected a weight (out, in), got ", w.shape());
  LOCKSTEP_CHECK(x.dim() >= (sequence ? 2 : 1) && x.size(-1) == w.size(1), "[", op, "] expected x (",
                 sequence ? "..., T, " : "..., ", w.size(1), "), got ", x.shape());
}

}  // namespace

Variable column_linear(const Variable& input, const Variable& weight, const Variable& shift, Activation activation,
                       const ColumnOptions& options, dist::ProcessGroup& group) {
  check_input("column_linear", input, weight, options.sequence);
  if (group.size() == 1) return linear(input, weight, shift, activation);
  if (Fp8Scope::current()) {  // in parts that linear() joins: the input's gradient is summed behind it
    const Variable whole = options.sequence ? all_gather(input, along_sequence, group) : copy_to(input, group);
    if (Fp8Scope::for_product(whole, weight)) {
      const Variable out = linear(whole, weight, shift, activation);
      return options.gather_output ? gather_from(out, -1, group) : out;
    }
  }
  const Variable x = Autocast::low(input), w = Autocast::low(weight), bias = Autocast::low(shift);
  const Tensor whole_x = options.sequence ? Pending::all_gather(x.tensor(), along_sequence, group).wait() : x.tensor();
  const auto finished = [&](const Variable& out) { return options.gather_output ? gather_from(out, -1, group) : out; };
  if (!needs_grad({&x, &w, &bias})) return finished(linear(whole_x, w.tensor(), tensor_or_none(bias), activation));
  // As autograd/ops_matmul.cpp's linear(): relu's derivative reads the output, the others' the value before.
  Tensor pre;
  const bool reads_pre = activation != Activation::none && activation != Activation::relu;
  Tensor out = linear(whole_x, w.tensor(), tensor_or_none(bias), activation, reads_pre ? &pre : nullptr);
  const Saved kept = activation == Activation::relu ? Saved(out) : Saved(pre);
  const Saved kept_x = w.requires_grad() ? Saved(x) : Saved(), kept_w = x.requires_grad() ? Saved(w) : Saved();
  return finished(record(
      "column_linear", {&x, &w, &bias}, std::move(out),
      [x = kept_x, w = kept_w, kept, activation, options, shape = whole_x.shape(), &group](Backward& back) {
        const char* const name = "column_linear";
        // Only this rank's part of the sequence was kept: the rest comes again while x's gradient is computed.
        std::optional<Pending> gathered;
        if (options.sequence && back.needs(1)) gathered = Pending::all_gather(x.get(name), along_sequence, group);
        if (activation != Activation::none) {
          using enum PointwiseOp;
          constexpr PointwiseOp ops[] = {count, relu, gelu_tanh, gelu_erf, silu};
          back.grad() = pointwise_grad(ops[int(activation)], PointwisePart::grad0, {}, back.grad(), kept.get(name), {});
        }
        const Tensor g = as_matrix(back.grad());
        std::optional<Pending> grad_x;
        if (back.needs(0)) {
          const Tensor mine = matmul(g, w.get(name)).view(shape);
          grad_x = options.sequence ? Pending::reduce_scatter(mine, along_sequence, group)
                                    : Pending::all_reduce(mine, group);
          if (!options.overlap) back.give(0, grad_x->wait());
        }
        if (back.needs(1)) back.give(1, matmul(g.t(), as_matrix(gathered ? gathered->wait() : x.get(name))));
        if (back.needs(2)) back.give(2, sum(g, {0}));
        if (grad_x && options.overlap) back.give(0, grad_x->wait());
      }));
}

Variable row_linear(const Variable& input, const Variable& weight, const Variable& shift, Activation activation,
                    const RowOptions& options, dist::ProcessGroup& group) {
  const Variable own = options.input_is_parallel ? input : scatter_to(input, -1, group);
  check_input("row_linear", own, weight, options.sequence);
  if (group.size() == 1) return linear(own, weight, shift, activation);
  const Variable product = linear(own, weight);  // its bias comes once, behind the sum
  Variable out = options.sequence ? reduce_scatter(product, along_sequence, group) : reduce_from(product, group);
  if (shift.defined()) out = add(out, Autocast::low(options.sequence ? copy_to(shift, group) : shift));
  return activated(out, activation);
}

}  // namespace lockstep::tensor_parallel
