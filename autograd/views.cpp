// Views, copies and casts of variables. The gradient of a view goes to the elements that the view shows; the others get
// 0. If the input already has a gradient from another use, the view's gradient is added to that in place.
#include "autograd/ops.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"

namespace lockstep {
namespace {

/// Records an operation on one variable. The result is a view if it shares x's storage.
template <class Fn> Variable viewed(const char* name, const Variable& x, Tensor out, Fn derivative) {
  const bool shares = out.storage() == x.tensor().storage();
  Variable result = on_tape(name, {&x}, std::move(out), std::move(derivative));
  return shares ? as_view(x, std::move(result)) : result;
}

/// Adds a view's gradient to the input's gradient. `region` selects the view's elements from a tensor of input's shape.
template <class Fn> void give_region(const Backward& back, const Shape& shape, Fn region) {
  const Tensor& grad = back.grad();
  if (const Tensor sum = back.partial(0); sum.defined()) {
    add_(region(sum), grad);
    return;
  }
  const Tensor full = zeros(shape, {grad.dtype(), grad.device()});
  region(full).copy_(grad);
  back.give(0, full);
}

/// Makes a variable of `shape` that is `grad` in the elements that `region` selects, and 0 elsewhere. Differentiable.
template <class Fn> Variable in_region(const Variable& grad, const Shape& shape, Fn region) {
  const Tensor full = zeros(shape, {grad.dtype(), grad.device()});
  region(full).copy_(grad.tensor());
  if (!needs_grad({&grad})) return full;
  return record("in_region", {&grad}, full, [region](auto& back) { back.give(0, region(back.grad())); });
}
template <class Fn> void give_region(const RecordedBackward& back, const Shape& shape, Fn region) {
  back.give(0, in_region(back.grad(), shape, region));
}

/// The view of the elements that `region` selects.
template <class Fn> Variable part_of(const char* name, const Variable& x, Fn region) {
  return viewed(name, x, region(x.tensor()),
                [shape = x.shape(), region](auto& back) { give_region(back, shape, region); });
}

Variable reshaped(const char* name, const Variable& x, Tensor out) {
  return viewed(name, x, std::move(out), [shape = x.shape()](auto& back) { back.give(0, back.grad().reshape(shape)); });
}

Variable same(const char* name, const Variable& x, Tensor out) {
  return viewed(name, x, std::move(out), [](auto& back) { back.give(0, std::move(back.grad())); });
}

/// Concatenates the gradients of the parts of a split of dim `dim`.
struct SplitGrad {
  Shape shape;
  TensorOptions like;
  std::vector<int64_t> sizes;
  int64_t dim;

  void operator()(Backward& back) const {
    const Tensor sum = back.partial(0);
    const Tensor full = sum.defined() ? sum : empty(shape, like);
    int64_t start = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Tensor part = full.narrow(dim, start, sizes[i]);
      const Tensor& grad = back.grad(int(i));
      if (sum.defined()) {
        if (grad.defined()) add_(part, grad);
      } else {
        grad.defined() ? part.copy_(grad) : part.zero_();
      }
      start += sizes[i];
    }
    if (!sum.defined()) back.give(0, full);
  }
  void operator()(RecordedBackward& back) const {
    std::vector<Variable> grads;
    for (size_t i = 0; i < sizes.size(); ++i) {
      Shape part = shape;
      part[int(dim)] = sizes[i];
      grads.push_back(back.grad(int(i)).defined() ? back.grad(int(i)) : Variable(zeros(part, like)));
    }
    back.give(0, cat(grads, dim));
  }
};

/// Records a split of `dim` as one operation.
std::vector<Variable> parts(const Variable& x, std::vector<Tensor> tensors, int64_t dim) {
  std::vector<Variable> results;
  if (!needs_grad({&x})) {
    for (Tensor& tensor : tensors) results.push_back(as_view(x, std::move(tensor)));
    return results;
  }
  dim = normalize_dim("split", dim, x.dim());
  std::vector<int64_t> sizes;
  for (const Tensor& tensor : tensors) sizes.push_back(tensor.size(dim));
  const TensorOptions like{x.dtype(), x.device()};
  results = record("split", std::vector<Variable>{x}, std::move(tensors), SplitGrad{x.shape(), like, sizes, dim});
  for (Variable& result : results) result = as_view(x, std::move(result));
  return results;
}

}  // namespace

Variable Variable::view(const Shape& shape) const { return reshaped("view", *this, tensor().view(shape)); }
Variable Variable::reshape(const Shape& shape) const { return reshaped("reshape", *this, tensor().reshape(shape)); }
Variable Variable::flatten(int64_t first, int64_t last) const {
  return reshaped("flatten", *this, tensor().flatten(first, last));
}
Variable Variable::squeeze() const { return reshaped("squeeze", *this, tensor().squeeze()); }
Variable Variable::squeeze(int64_t dim) const { return reshaped("squeeze", *this, tensor().squeeze(dim)); }
Variable Variable::unsqueeze(int64_t dim) const { return reshaped("unsqueeze", *this, tensor().unsqueeze(dim)); }

Variable Variable::permute(const Dims& dims) const {
  Tensor out = tensor().permute(dims);
  Dims inverse = dims;
  for (int i = 0; i < dims.rank(); ++i) inverse[normalize_dim("permute", dims[i], dims.rank())] = i;
  return viewed("permute", *this, std::move(out),
                [inverse](auto& back) { back.give(0, back.grad().permute(inverse)); });
}

Variable Variable::transpose(int64_t a, int64_t b) const {
  return viewed("transpose", *this, tensor().transpose(a, b),
                [a, b](auto& back) { back.give(0, back.grad().transpose(a, b)); });
}

Variable Variable::t() const {
  return viewed("t", *this, tensor().t(), [](auto& back) { back.give(0, back.grad().t()); });
}

Variable Variable::slice(int64_t dim, int64_t start, int64_t end, int64_t step) const {
  return part_of("slice", *this, [=](const auto& x) { return x.slice(dim, start, end, step); });
}

Variable Variable::narrow(int64_t dim, int64_t start, int64_t length) const {
  return part_of("narrow", *this, [=](const auto& x) { return x.narrow(dim, start, length); });
}

Variable Variable::select(int64_t dim, int64_t index) const {
  return part_of("select", *this, [=](const auto& x) { return x.select(dim, index); });
}

Variable Variable::diagonal(int64_t offset, int64_t dim1, int64_t dim2) const {
  return part_of("diagonal", *this, [=](const auto& x) { return x.diagonal(offset, dim1, dim2); });
}

// Expanded dims need no code in backward: Backward::give() sums the gradient over them.
Variable Variable::expand(const Shape& shape) const { return same("expand", *this, tensor().expand(shape)); }

std::vector<Variable> Variable::chunk(int64_t chunks, int64_t dim) const {
  return parts(*this, tensor().chunk(chunks, dim), dim);
}
std::vector<Variable> Variable::split(int64_t size, int64_t dim) const {
  return parts(*this, tensor().split(size, dim), dim);
}
std::vector<Variable> Variable::split(const std::vector<int64_t>& sizes, int64_t dim) const {
  return parts(*this, tensor().split(sizes, dim), dim);
}

Variable Variable::contiguous() const {
  return tensor().is_contiguous() ? *this : same("contiguous", *this, tensor().contiguous());
}
Variable Variable::clone() const { return same("clone", *this, tensor().clone()); }

Variable Variable::to(DType dtype) const {
  if (dtype == this->dtype()) return *this;
  Tensor out = tensor().to(dtype);
  if (!is_floating(dtype) && !is_complex(dtype)) return out;
  if (is_complex(dtype) && !is_complex(this->dtype()))
    return viewed("to", *this, std::move(out),
                  [was = this->dtype()](auto& back) { back.give(0, real(back.grad()).to(was)); });
  return viewed("to", *this, std::move(out), [was = this->dtype()](auto& back) { back.give(0, back.grad().to(was)); });
}

Variable Variable::to(Device device) const {
  if (device == this->device()) return *this;
  return viewed("to", *this, tensor().to(device),
                [was = this->device()](auto& back) { back.give(0, back.grad().to(was)); });
}

}  // namespace lockstep
