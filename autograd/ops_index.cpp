// Derivatives of indexing and joining: the gradient of a value goes back to the position that it was read from.
#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"

namespace lockstep {
namespace {

/// Adds a gradient that is mostly zeros to the gradient of input 0. `add_to` adds the nonzero part in place: to the sum
/// of the gradients collected so far, or to a tensor of zeros if there are none.
template <class Fn> void give_places(const Backward& back, const Shape& shape, Fn add_to) {
  const Tensor sum = back.partial(0);
  const Tensor full = sum.defined() ? sum : zeros(shape, {back.grad().dtype(), back.grad().device()});
  add_to(full);
  if (!sum.defined()) back.give(0, full);
}

/// In a recorded backward pass, gives input 0 the incoming gradient at `index` along `dim`, and zeros elsewhere.
void give_places(const RecordedBackward& back, const Shape& shape, int64_t dim, const Tensor& index) {
  const Variable& grad = back.grad();
  back.give(0, scatter_add(Variable(zeros(shape, {grad.dtype(), grad.device()})), dim, index, grad));
}

// Gradient of the `source` of scatter(). `source` may be larger than `index`: elements that scatter() ignored get 0.
template <class T> T gradient_of_source(const T& grad, int64_t dim, const Tensor& index, const Shape& source) {
  const T read = gather(grad, dim, index);
  if (read.shape() == source) return read;
  std::vector<int64_t> more;  // last dim first
  for (int d = source.rank() - 1; d >= 0; --d) more.insert(more.end(), {0, source[d] - index.shape()[d]});
  return pad(read, more);
}

struct GatherGrad {
  Shape shape;
  int64_t dim;
  Saved index;

  void operator()(Backward& back) const {
    give_places(back, shape, [&](const Tensor& full) { scatter_add_(full, dim, index.get("gather"), back.grad()); });
  }
  void operator()(RecordedBackward& back) const { give_places(back, shape, dim, index.get("gather")); }
};

struct IndexSelectGrad {
  Shape shape;
  int64_t dim;
  Saved index;

  void operator()(Backward& back) const {
    const Tensor& rows = index.get("index_select");
    give_places(back, shape, [&](const Tensor& full) { index_add_(full, dim, rows, back.grad()); });
  }
  void operator()(RecordedBackward& back) const {
    const Tensor& rows = index.get("index_select");
    Shape along = Dims::filled(shape.rank(), 1);
    along[int(normalize_dim("index_select", dim, shape.rank()))] = rows.numel();
    give_places(back, shape, dim, rows.reshape(along).expand(back.grad().shape()));
  }
};

}  // namespace

Variable gather(const Variable& x, int64_t dim, const Tensor& index) {
  return on_tape("gather", {&x}, gather(x.tensor(), dim, index), GatherGrad{x.shape(), dim, index});
}

Variable scatter(const Variable& x, int64_t dim, const Tensor& index, const Variable& source) {
  if (const auto dtype = Autocast::common({&x, &source})) return scatter(x.to(*dtype), dim, index, source.to(*dtype));
  return on_tape("scatter", {&x, &source}, scatter(x.tensor(), dim, index, source.tensor()),
                 [dim, at = Saved(index), shape = source.shape()](auto& back) {
                   using T = Value<decltype(back)>;
                   const Tensor& index = at.get("scatter");
                   const T& grad = back.grad();
                   if (back.needs(0))
                     back.give(0, scatter(grad, dim, index, T(zeros(index.shape(), {grad.dtype(), grad.device()}))));
                   if (back.needs(1)) back.give(1, gradient_of_source(grad, dim, index, shape));
                 });
}

Variable scatter_add(const Variable& x, int64_t dim, const Tensor& index, const Variable& source) {
  if (const auto dtype = Autocast::common({&x, &source}))
    return scatter_add(x.to(*dtype), dim, index, source.to(*dtype));
  return on_tape("scatter_add", {&x, &source}, scatter_add(x.tensor(), dim, index, source.tensor()),
                 [dim, at = Saved(index), shape = source.shape()](auto& back) {
                   if (back.needs(1)) back.give(1, gradient_of_source(back.grad(), dim, at.get("scatter_add"), shape));
                   if (back.needs(0)) back.give(0, std::move(back.grad()));
                 });
}

Variable index_select(const Variable& x, int64_t dim, const Tensor& index) {
  return on_tape("index_select", {&x}, index_select(x.tensor(), dim, index), IndexSelectGrad{x.shape(), dim, index});
}

Variable masked_fill(const Variable& x, const Tensor& mask, Scalar value) {
  return on_tape("masked_fill", {&x}, masked_fill(x.tensor(), mask, value), [mask = Saved(mask)](auto& back) {
    back.give(0, masked_fill(back.grad(), mask.get("masked_fill"), 0));
  });
}

namespace {

/// Under autocast, the operands converted to the widest dtype.
std::vector<Variable> in_one_dtype(const std::vector<Variable>& variables) {
  if (variables.empty() || !Autocast::enabled()) return variables;
  DType dtype = variables[0].dtype();
  for (const Variable& x : variables) {
    if (!Autocast::promotes(dtype, x.dtype())) return variables;
    dtype = Autocast::wider(dtype, x.dtype());
  }
  std::vector<Variable> same;
  for (const Variable& x : variables) same.push_back(x.to(dtype));
  return same;
}

std::vector<Tensor> tensors_of(const std::vector<Variable>& variables) {
  std::vector<Tensor> tensors;
  for (const Variable& x : variables) tensors.push_back(x.tensor());
  return tensors;
}

}  // namespace

Variable cat(const std::vector<Variable>& variables, int64_t dim) {
  const std::vector<Variable> inputs = in_one_dtype(variables);
  Tensor out = cat(tensors_of(inputs), dim);
  if (!needs_grad(inputs)) return out;
  std::vector<int64_t> sizes;
  for (const Variable& x : inputs) sizes.push_back(x.size(dim));
  return record("cat", inputs, {std::move(out)}, [sizes, dim](auto& back) {
    int64_t start = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (back.needs(int(i))) back.give(int(i), back.grad().narrow(dim, start, sizes[i]));
      start += sizes[i];
    }
  })[0];
}

Variable stack(const std::vector<Variable>& variables, int64_t dim) {
  const std::vector<Variable> inputs = in_one_dtype(variables);
  Tensor out = stack(tensors_of(inputs), dim);
  if (!needs_grad(inputs)) return out;
  return record("stack", inputs, {std::move(out)}, [count = int(inputs.size()), dim](auto& back) {
    for (int i = 0; i < count; ++i) {
      if (back.needs(i)) back.give(i, back.grad().select(dim, i));
    }
  })[0];
}

Variable pad(const Variable& x, const std::vector<int64_t>& pad_, Scalar value) {
  return on_tape("pad", {&x}, pad(x.tensor(), pad_, value), [amounts = pad_](auto& back) {
    std::vector<int64_t> opposite;  // removes what pad() added, and puts zeros where pad() cropped
    for (int64_t amount : amounts) opposite.push_back(-amount);
    back.give(0, pad(back.grad(), opposite, 0));
  });
}

Variable tril(const Variable& x, int64_t diagonal) {
  return on_tape("tril", {&x}, tril(x.tensor(), diagonal),
                 [diagonal](auto& back) { back.give(0, tril(back.grad(), diagonal)); });
}

Variable triu(const Variable& x, int64_t diagonal) {
  return on_tape("triu", {&x}, triu(x.tensor(), diagonal),
                 [diagonal](auto& back) { back.give(0, triu(back.grad(), diagonal)); });
}

}  // namespace lockstep
