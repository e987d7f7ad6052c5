// Derivatives of reductions and sorting.
#include <limits>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "tensor/kernels.h"

namespace lockstep {
namespace {

/// The shape of the result with keepdim: size 1 at the reduced dims.
Shape kept_shape(const Shape& shape, const Dims& dims) {
  if (dims.empty()) return Dims::filled(shape.rank(), 1);
  Shape kept = shape;
  for (int64_t dim : dims)
    if (shape.rank() > 0) kept[normalize_dim("reduce", dim, shape.rank())] = 1;
  return kept;
}

int64_t reduced_count(const Shape& shape, const Dims& dims) {
  const Shape kept = kept_shape(shape, dims);
  int64_t count = 1;
  for (int d = 0; d < shape.rank(); ++d)
    if (kept[d] != shape[d]) count *= shape[d];
  return count;
}

/// A gradient or result with the reduced dims restored as size 1, so that it broadcasts against x.
template <class T> T put_back(const T& grad, const Shape& shape, const Dims& dims) {
  return grad.reshape(kept_shape(shape, dims));
}

/// The divisor of a gradient. It is 0 where `none` is set, and over_length() replaces the quotients there. A recorded
/// division gets the divisor 1 there, because the derivative of a division by 0 is NaN.
const Tensor& divisor(const Tensor& length, const Tensor&) { return length; }
Variable divisor(const Variable& length, const Tensor& none) { return masked_fill(length, none, 1); }

/// For the derivatives of norms and deviations: grad / out * factor, but 0 where `out` (the norm or deviation) is 0.
template <class Back>
auto over_length(Back& back, const Saved& out, const Shape& shape, const Dims& dims, double factor) {
  const auto length = put_back<Value<Back>>(back.output(out), shape, dims);
  const Tensor none = eq(bare(length), zeros_like(bare(length)));
  const auto scale = div(put_back(back.grad(), shape, dims), divisor(length, none));
  return fill_over(factor == 1 ? scale : scale_over(scale, factor), none, 0);
}

Variable extreme(const char* name, const Variable& x, const Dims& dims, Tensor out) {
  if (!needs_grad({&x})) return out;
  Saved kept = out;
  return record(name, {&x}, std::move(out), [name, x = Saved(x), out = std::move(kept), dims](auto& back) {
    const Tensor& values = x.get(name);
    const Shape& shape = values.shape();
    const Tensor at = eq(values, put_back(out.get(name), shape, dims));
    // All elements equal to the maximum or minimum share its gradient. Count them in f32: f16 is exact only up to 2048.
    const Tensor ties = sum(at, dims, true).to(size_of(values.dtype()) == 2 ? f32 : values.dtype());
    const auto share = div(put_back(back.grad(), shape, dims).to(ties.dtype()), ties).to(values.dtype());
    back.give(0, mul(at.to(values.dtype()), share));
  });
}

/// Returns `result`, whose values an operation selected from x along `dim`. Backward adds the gradient of each value to
/// the element of x that it was selected from.
VariableIndices picked(const char* name, const Variable& x, int64_t dim, bool keepdim, ValuesIndices result) {
  if (!needs_grad({&x})) return {std::move(result.values), std::move(result.indices)};
  const Tensor indices = result.indices;
  Variable values = record(name, {&x}, std::move(result.values),
                           [name, shape = x.shape(), dim, keepdim, at = Saved(indices)](auto& back) {
                             auto grad = back.grad();
                             if (shape.rank() == 0) return back.give(0, grad);
                             Tensor index = at.get(name);
                             if (!keepdim) grad = grad.unsqueeze(dim), index = index.unsqueeze(dim);
                             const Value<decltype(back)> none = zeros(shape, {grad.dtype(), grad.device()});
                             back.give(0, scatter_add(none, dim, index, grad));
                           });
  return {std::move(values), indices};
}

}  // namespace

Variable sum(const Variable& input, const Dims& dims, bool keepdim) {
  const Variable x = Autocast::high(input);
  return on_tape("sum", {&x}, sum(x.tensor(), dims, keepdim), [shape = x.shape(), dims](auto& back) {
    back.give(0, put_back(back.grad(), shape, dims).expand(shape));
  });
}

Variable mean(const Variable& input, const Dims& dims, bool keepdim) {
  const Variable x = Autocast::high(input);
  return on_tape("mean", {&x}, mean(x.tensor(), dims, keepdim), [shape = x.shape(), dims](auto& back) {
    const auto share = div_scalar(back.grad(), reduced_count(shape, dims));
    back.give(0, put_back(share, shape, dims).expand(shape));
  });
}

Variable amax(const Variable& x, const Dims& dims, bool keepdim) {
  return extreme("amax", x, dims, amax(x.tensor(), dims, keepdim));
}
Variable amin(const Variable& x, const Dims& dims, bool keepdim) {
  return extreme("amin", x, dims, amin(x.tensor(), dims, keepdim));
}
Variable max(const Variable& x) { return extreme("max", x, {}, max(x.tensor())); }
Variable min(const Variable& x) { return extreme("min", x, {}, min(x.tensor())); }

Variable var(const Variable& input, const Dims& dims, double correction, bool keepdim) {
  const Wide wide(input);
  const Variable x = wide(input);
  return wide.round(
      on_tape("var", {&x}, var(x.tensor(), dims, correction, keepdim), [x = Saved(x), dims, correction](auto& back) {
        const auto& values = back.input(0, x);
        const double n = double(reduced_count(values.shape(), dims));
        const auto scale = mul_scalar(put_back(back.grad(), values.shape(), dims), 2 / (n - correction));
        back.give(0, mul_over(sub(values, mean(values, dims, true)), scale));
      }));
}

Variable stddev(const Variable& input, const Dims& dims, double correction, bool keepdim) {
  const Wide wide(input);
  const Variable x = wide(input);
  Tensor out = stddev(x.tensor(), dims, correction, keepdim);
  if (!needs_grad({&x})) return wide.round(out);
  Saved kept = out;
  return wide.round(
      record("stddev", {&x}, std::move(out), [x = Saved(x), out = std::move(kept), dims, correction](auto& back) {
        const auto& values = back.input(0, x);
        const double n = double(reduced_count(values.shape(), dims));
        const auto scale =
            // 0 if all values are equal, as in PyTorch
            over_length(back, out, values.shape(), dims, 1 / (n - correction));
        back.give(0, mul_over(sub(values, mean(values, dims, true)), scale));
      }));
}

Variable norm(const Variable& input, const Dims& dims, bool keepdim) {
  const Wide wide(input);
  const Variable x = wide(input);
  Tensor out = norm(x.tensor(), dims, keepdim);
  if (!needs_grad({&x})) return wide.round(out);
  Saved kept = out;
  return wide.round(record("norm", {&x}, std::move(out), [x = Saved(x), out = std::move(kept), dims](auto& back) {
    const auto& values = back.input(0, x);
    back.give(0, mul(values, over_length(back, out, values.shape(), dims, 1)));
  }));
}

Variable logsumexp(const Variable& input, const Dims& dims, bool keepdim) {
  const Wide wide(input);
  const Variable x = wide(input);
  Tensor out = logsumexp(x.tensor(), dims, keepdim);
  if (!needs_grad({&x})) return wide.round(out);
  Saved kept = out;
  return wide.round(record("logsumexp", {&x}, std::move(out), [x = Saved(x), out = std::move(kept), dims](auto& back) {
    const auto& values = back.input(0, x);
    const auto log = put_back<Value<decltype(back)>>(back.output(out), values.shape(), dims);
    const Tensor nothing = full({}, -std::numeric_limits<double>::infinity(), {log.dtype(), log.device()});
    const auto finite = masked_fill(log, eq(bare(log), nothing), 0);  // all -inf: gradient 0
    back.give(0, mul_over(exp_over(sub(values, finite)), put_back(back.grad(), values.shape(), dims)));
  }));
}

VariableIndices max(const Variable& x, int64_t dim, bool keepdim) {
  return picked("max", x, dim, keepdim, max(x.tensor(), dim, keepdim));
}
VariableIndices min(const Variable& x, int64_t dim, bool keepdim) {
  return picked("min", x, dim, keepdim, min(x.tensor(), dim, keepdim));
}
VariableIndices sort(const Variable& x, int64_t dim, bool descending) {
  return picked("sort", x, dim, true, sort(x.tensor(), dim, descending));
}
VariableIndices topk(const Variable& x, int64_t k, int64_t dim, bool largest) {
  return picked("topk", x, dim, true, topk(x.tensor(), k, dim, largest));
}

Variable sum_to(const Variable& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  Dims dims;
  const int more = x.dim() - shape.rank();
  for (int d = 0; d < x.dim(); ++d)
    if (d < more || (shape[d - more] == 1 && x.size(d) != 1)) dims.push_back(d);
  return sum(x, dims, true).reshape(shape);
}

}  // namespace lockstep
