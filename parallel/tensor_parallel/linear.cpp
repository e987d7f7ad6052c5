// Column- and row-parallel linear maps. See linear.h.
#include "parallel/tensor_parallel/linear.h"

#include "autograd/autocast.h"
#include "autograd/tape.h"
#include "autograd/unary_grad.h"
#include "nn/attachment.h"
#include "parallel/tensor_parallel/overlap.h"
#include "tensor/flops.h"
#include "tensor/ops.h"
#include "tensor/stored_matrix.h"

namespace lockstep::tensor_parallel {
namespace {

Tensor tensor_or_none(const Variable& x) { return x.defined() ? x.tensor() : Tensor(); }

void check_input(const char* op, const Variable& x, const Variable& w, bool sequence) {
  LOCKSTEP_CHECK(w.dim() == 2, "[", op, "] expected a weight (out, in), got ", w.shape(), "; reshape it");
  LOCKSTEP_CHECK(x.dim() >= (sequence ? 2 : 1) && x.size(-1) == w.size(1), "[", op, "] expected x (",
                 sequence ? "..., T, " : "..., ", w.size(1), "), got ", x.shape(), "; reshape the input");
}

/// Returns the weight as an ordinary tensor. Decodes a weight that is stored in another format (StoredMatrix): once,
/// because several products will read it.
Tensor in_numbers(const Tensor& w, DType dtype) {
  const StoredMatrix* const stored = stored_in(w);
  return stored ? stored->numbers(dtype) : w;
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
  Tensor full;
  bool is_of(const Tensor& g) const { return full.defined() && part.get().raw_data() == g.raw_data(); }
  Tensor keep(const Tensor& g, Tensor all, bool keeps) {
    part = keeps ? Saved(g) : Saved(), full = keeps ? all : Tensor();
    return all;
  }
};

/// The gradients of a product without nn::Arithmetic, computed in chunks of rows.
class Gradients : public nn::RowGradients {
 public:
  Gradients(Backward& back, Saved x, const Saved& w, const char* name) : x_(std::move(x)), name_(name) {
    if (!back.needs(0)) return;
    weight_ = in_numbers(w.get(name), back.grad().dtype());
    before_ = back.fold(0);
    if (before_) kept_ = before_->kept.get(before_->name).contiguous();
  }
  Tensor of_input(const Tensor& g, const std::function<Tensor(const Tensor& full)>& chunk,
                  const Tensor& place) override {
    if (!weight_.defined()) return {};
    if (before_) return matmul_unary_grad(g, weight_, before_->op, before_->args, as_matrix(chunk(kept_)));
    if (!place.defined()) return matmul(g, weight_);
    MacCounter::add(g.numel() * weight_.size(1));
    matmul_into(place, g, weight_);
    return place;
  }
  Tensor of_weight(const Tensor& g) override { return matmul(g.t(), as_matrix(x_.get(name_))); }

 private:
  Saved x_;
  const char* name_;
  Tensor weight_, kept_;
  const UnaryGrad* before_ = nullptr;
};

nn::RowProduct ordinary_product(const Variable& x, const Variable& w) {
  static constexpr const char* name = "row_linear";
  return {.name = name,
          .rows = x.tensor(),
          .forward = [w = w.tensor()](const Tensor& rows) { return linear(rows, w); },
          .backward = [x = w.requires_grad() ? Saved(x) : Saved(), w = x.requires_grad() ? Saved(w) : Saved()](
                          Backward& back, int64_t) { return std::make_unique<Gradients>(back, x, w, name); }};
}

Variable row_product(const nn::Product& p, const RowOptions& options, dist::ProcessGroup& group) {
  const bool takes = p.arithmetic && p.arithmetic->takes(p.x, p.weight);
  const int64_t multiple = takes ? p.arithmetic->row_multiple() : 1;
  const Variable x = Autocast::low(p.x), w = takes ? p.weight : Autocast::low(p.weight);
  const nn::RowProduct product = takes
                                     ? p.arithmetic->in_rows({x, w, p.bias, Activation::none, p.arithmetic, p.training})
                                     : ordinary_product(x, w);
  const int64_t asked = options.overlap ? options.chunks : 1;
  const Chunks chunks(x.shape(), options.sequence, asked, x.device(), group, multiple);
  Tensor out = sum_of_products(product.rows, chunks, group, false, product.forward).wait();
  if (!needs_grad({&x, &w})) return out;
  return record(product.name, {&x, &w}, std::move(out),
                [backward = product.backward, shape = x.shape(), dtype = x.dtype(), sequence = options.sequence, asked,
                 multiple, &group, keeps = w.requires_grad(), gathered = Gathered()](Backward& back) mutable {
                  const bool wants_x = back.needs(0), wants_w = back.needs(1);
                  const Chunks chunks(shape, sequence, sequence && wants_x ? asked : 1, back.grad().device(), group,
                                      multiple);
                  const auto gradients = backward(back, chunks.count());
                  Tensor grad_x;
                  const auto multiply = [&](const Tensor& g, int64_t i) {
                    const auto chunk = [&](const Tensor& full) { return chunks.of_full(full, i); };
                    if (chunks.count() == 1) {
                      const Tensor all = gradients->of_input(g, chunk, {});
                      if (wants_x) grad_x = all.view(shape);
                      return;
                    }
                    if (!grad_x.defined()) grad_x = empty(shape, {.dtype = dtype, .device = g.device()});
                    const Tensor to = chunk(grad_x), place = chunks.apart() ? Tensor() : as_matrix(to);
                    const Tensor part = gradients->of_input(g, chunk, place);
                    if (part.raw_data() != to.raw_data()) to.copy_(part.view(to.shape()));
                  };
                  Tensor g = back.grad();
                  if (!sequence) multiply(as_matrix(g), 0);
                  else if (gathered.is_of(g)) multiply(as_matrix(g = gathered.full), 0);
                  else g = gathered.keep(g, use_gathered(g, chunks, group, keeps, multiply), !wants_w);
                  if (wants_x) back.give(0, std::move(grad_x));
                  if (wants_w) back.give(1, gradients->of_weight(as_matrix(g)));
                });
}

}  // namespace

Variable column_linear(const Variable& input, const Variable& weight, const Variable& shift, Activation activation,
                       const ColumnOptions& options, dist::ProcessGroup& group, nn::Arithmetic* arithmetic,
                       bool training) {
  check_input("column_linear", input, weight, options.sequence);
  const nn::Product product{input, weight, shift, activation, arithmetic, training};
  if (group.size() == 1) return nn::multiply(product);
  if (arithmetic) {
    const Variable x = Autocast::low(input);
    const Tensor full = options.sequence ? Pending::all_gather(x.tensor(), along_sequence, group).wait() : x.tensor();
    if (arithmetic->takes(full, weight)) {
      const auto sum_up = [options, &group](const Tensor& mine) -> std::function<Tensor()> {
        Pending sum = options.sequence ? Pending::reduce_scatter(mine, along_sequence, group, {}, options.overlap)
                                       : Pending::all_reduce(mine, group, options.overlap);
        return [sum]() mutable { return sum.wait(); };
      };
      const Variable out =
          arithmetic->linear({x, weight, shift, activation, arithmetic, training}, {.full = full, .sum = sum_up});
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
    out = empty(chunks.full_shape(w.size(0)), like);
    if (reads_pre) pre = empty(out.shape(), like);
    use_gathered(x.tensor(), chunks, group, false, [&](const Tensor& rows, int64_t i) {
      linear_at(chunks.of_full(out, i), reads_pre ? chunks.of_full(pre, i) : Tensor(), rows, w.tensor(),
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
                    const RowOptions& options, dist::ProcessGroup& group, nn::Arithmetic* arithmetic, bool training) {
  const Variable own = options.input_is_parallel ? input : scatter_to(input, -1, group);
  check_input("row_linear", own, weight, options.sequence);
  const nn::Product product{own, weight, shift, activation, arithmetic, training};
  if (group.size() == 1) return nn::multiply(product);
  // The bias is added once, after the sum over ranks.
  Variable out = row_product(product, options, group);
  if (shift.defined()) out = add(out, Autocast::low(options.sequence ? copy_to(shift, group) : shift));
  return activated(out, activation);
}

}  // namespace lockstep::tensor_parallel
