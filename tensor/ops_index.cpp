// Indexing and joining. Indices are checked before anything is written.
#include "tensor/complex.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"

namespace lockstep {

void check_index(const char* op, const Tensor& index, int64_t size, const Tensor& x) {
  check_defined(op, index);
  LOCKSTEP_CHECK(index.dtype() == i64, "[", op, "] expected an index of i64, got ", index.dtype(),
                 " (convert with .to(i64))");
  check_same_device(op, index, x);
  if (!index.device().is_cpu()) return;
  const Tensor values = index.contiguous();
  const int64_t* p = values.data<int64_t>();
  int64_t bad = 0;
  for (int64_t i = 0; i < values.numel(); ++i) bad |= uint64_t(p[i]) >= uint64_t(size);
  if (!bad) return;
  int64_t at = 0;
  while (uint64_t(p[at]) < uint64_t(size)) ++at;
  fail(
      str("[", op, "] expected indices in [0, ", size, "), got ", p[at], " at position ", at, "; correct the indices"));
}

namespace {

TensorOptions options_of(const Tensor& x) { return {.dtype = x.dtype(), .device = x.device()}; }

// For gather and scatter: Error unless `index` has as many dims as x, and is no larger than x in all dims except d.
void check_places(const char* op, const Tensor& x, int d, const Tensor& index) {
  check_defined(op, index);
  bool fits = index.dim() == x.dim();
  for (int i = 0; fits && i < x.dim(); ++i) fits = i == d || index.shape()[i] <= x.shape()[i];
  LOCKSTEP_CHECK(fits, "[", op, "] expected an index with as many dims as ", x.shape(),
                 " and at most its sizes outside dim ", d, ", got ", index.shape(), "; reshape the index");
  check_index(op, index, size_at(x, d), x);
}

void check_source(const char* op, const Tensor& x, const Tensor& index, const Tensor& source) {
  check_defined(op, source);
  check_same_dtype(op, x, source);
  check_same_device(op, x, source);
  bool fits = source.dim() == index.dim();
  for (int i = 0; fits && i < index.dim(); ++i) fits = index.shape()[i] <= source.shape()[i];
  LOCKSTEP_CHECK(fits, "[", op, "] expected a source of at least the index's sizes ", index.shape(), ", got ",
                 source.shape(), "; expand the source, or narrow the index");
}

// Runs fn on x if it is row-major, else on a copy that is then written back.
template <class Fn> const Tensor& in_place(const char* op, const Tensor& x, Fn&& fn) {
  x.storage()->bump_version(op);
  Tensor out = x.contiguous();
  fn(out);
  if (!x.is_contiguous()) kernels::copy(x.device(), out, const_cast<Tensor&>(x));
  return x;
}

// Returns `source`, or a clone if it shares storage with x, because writing to x would change it.
Tensor apart_from_own(const Tensor& source, const Tensor& x) {
  return source.storage() == x.storage() ? source.clone() : source;
}

// Copies `source` into out[..., start : start + size, ...] along d.
void copy_into(const Tensor& out, int d, int64_t start, const Tensor& source) {
  Tensor part = out.narrow(d, start, source.shape()[d]);
  kernels::copy(out.device(), source, part);
}

Tensor join(const std::vector<Tensor>& tensors, int d) {
  Shape shape = tensors[0].shape();
  shape[d] = 0;
  for (const Tensor& x : tensors) shape[d] += x.shape()[d];
  const Tensor out = empty(shape, options_of(tensors[0]));
  int64_t at = 0;
  for (const Tensor& x : tensors) {
    copy_into(out, d, at, x);
    at += x.shape()[d];
  }
  return out;
}

Tensor triangle(const char* op, const Tensor& x, int64_t diagonal, bool upper) {
  check_defined(op, x);
  LOCKSTEP_CHECK(x.dim() >= 2, "[", op, "] expected at least two dims, got shape ", x.shape(), "; unsqueeze(0) it");
  Tensor out = empty_like(x);
  // Diagonals beyond the matrix change nothing; clamp, because the kernel adds the diagonal to a row index.
  diagonal = std::clamp(diagonal, -x.size(-2) - 1, x.size(-1) + 1);
  kernels::triangle(x.device(), x, diagonal, upper, out);
  return out;
}

// out = value where mask is true, else x. Expands all operands to out's shape by stride 0, for the kernel of where().
void masked_fill_into(const Tensor& x, const Tensor& mask, Scalar value, Tensor& out) {
  const Tensor condition = mask.expand(out.shape()), constant = full({}, value, options_of(x)).expand(out.shape());
  const Tensor source = x.expand(out.shape());
  const Tensor* in[] = {&condition, &constant, &source};
  kernels::pointwise.as("where", x.device(), PointwiseOp::where, PointwisePart::value, {}, in, 3, out);
}

Shape check_mask(const char* op, const Tensor& x, const Tensor& mask, Scalar value) {
  check_defined(op, x);
  check_defined(op, mask);
  if (is_complex(x.dtype())) fail_complex(op, x.dtype());
  LOCKSTEP_CHECK(mask.dtype() == boolean, "[", op, "] expected a bool mask, got ", mask.dtype(), "; use .to(boolean)");
  check_same_device(op, x, mask);
  check_fits(op, value, x.dtype());
  return broadcast_shapes(op, x.shape(), mask.shape());
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& index) {
  check_defined("embedding", weight);
  LOCKSTEP_CHECK(weight.dim() == 2, "[embedding] expected a weight of shape (rows, columns), got ", weight.shape());
  check_index("embedding", index, weight.shape()[0], weight);
  Shape shape = index.shape();
  shape.push_back(weight.shape()[1]);
  const Tensor out = empty(shape, options_of(weight));
  Tensor rows = out.view({index.numel(), weight.shape()[1]});
  kernels::embedding(weight.device(), weight, index.reshape({index.numel()}), rows);
  return out;
}

const Tensor& embedding_grad_(const Tensor& grad_weight, const Tensor& grad, const Tensor& index,
                              int64_t padding_index) {
  check_floating("embedding_grad_", grad_weight);
  check_defined("embedding_grad_", grad);
  LOCKSTEP_CHECK(grad_weight.dim() == 2, "[embedding_grad_] expected a grad_weight of shape (rows, columns), got ",
                 grad_weight.shape());
  check_same_dtype("embedding_grad_", grad_weight, grad);
  check_same_device("embedding_grad_", grad_weight, grad);
  check_index("embedding_grad_", index, grad_weight.shape()[0], grad_weight);
  Shape shape = index.shape();
  shape.push_back(grad_weight.shape()[1]);
  LOCKSTEP_CHECK(grad.shape() == shape, "[embedding_grad_] expected a gradient of shape ", shape, ", got ",
                 grad.shape());
  const Tensor rows = apart_from_own(grad, grad_weight).reshape({index.numel(), shape.back()});
  const Tensor places = index.reshape({index.numel()});
  return in_place("embedding_grad_", grad_weight,
                  [&](Tensor& out) { kernels::embedding_grad(out.device(), rows, places, padding_index, out); });
}

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  check_defined("gather", x);
  const int d = normalize_dim("gather", dim, x.dim());
  check_places("gather", x, d, index);
  Tensor out = empty(index.shape(), options_of(x));
  kernels::gather(x.device(), x, d, index, out);
  return out;
}

Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  check_defined("scatter", x);
  const int d = normalize_dim("scatter", dim, x.dim());
  check_places("scatter", x, d, index);
  check_source("scatter", x, index, source);
  Tensor out = x.clone();
  kernels::scatter(x.device(), false, source, d, index, out);
  return out;
}

const Tensor& scatter_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  check_defined("scatter_add_", x);
  const int d = normalize_dim("scatter_add_", dim, x.dim());
  LOCKSTEP_CHECK(x.dtype() != boolean, "[scatter_add_] expected a number dtype, got bool; convert with .to(i32)");
  check_places("scatter_add_", x, d, index);
  check_source("scatter_add_", x, index, source);
  const Tensor from = apart_from_own(source, x);
  // The source may be larger than the index: take its first elements, as many as the index has along each dim.
  const Tensor part = from.as_strided(index.shape(), from.strides(), from.offset());
  return in_place("scatter_add_", x, [&](Tensor& out) { kernels::scatter(out.device(), true, part, d, index, out); });
}

Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  check_defined("scatter_add", x);
  return scatter_add_(x.clone(), dim, index, source);
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  const int d = check_dim("index_select", x, dim);
  check_defined("index_select", index);
  LOCKSTEP_CHECK(index.dim() == 1, "[index_select] expected an index of one dim, got shape ", index.shape());
  check_index("index_select", index, x.shape()[d], x);
  Shape shape = x.shape();
  shape[d] = index.numel();
  Tensor out = empty(shape, options_of(x));
  kernels::index_select(x.device(), x, d, index, out);
  return out;
}

const Tensor& index_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  const int d = check_dim("index_add_", x, dim);
  LOCKSTEP_CHECK(x.dtype() != boolean, "[index_add_] expected a number dtype, got bool; convert with .to(i32)");
  check_defined("index_add_", source);
  check_same_dtype("index_add_", x, source);
  check_same_device("index_add_", x, source);
  check_defined("index_add_", index);
  LOCKSTEP_CHECK(index.dim() == 1, "[index_add_] expected an index of one dim, got shape ", index.shape());
  check_index("index_add_", index, x.shape()[d], x);
  Shape shape = x.shape();
  shape[d] = index.numel();
  LOCKSTEP_CHECK(source.shape() == shape, "[index_add_] expected a source of shape ", shape, ", got ", source.shape());
  const Tensor from = apart_from_own(source, x);
  return in_place("index_add_", x, [&](Tensor& out) { kernels::index_add(out.device(), from, d, index, out); });
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value) {
  Tensor out = empty(check_mask("masked_fill", x, mask, value), options_of(x));
  masked_fill_into(x, mask, value, out);
  return out;
}

const Tensor& masked_fill_(const Tensor& x, const Tensor& mask, Scalar value) {
  LOCKSTEP_CHECK(check_mask("masked_fill_", x, mask, value) == x.shape(),
                 "[masked_fill_] expected a mask that broadcasts to ", x.shape(), ", got ", mask.shape(),
                 "; reshape it");
  x.storage()->bump_version("masked_fill_");
  Tensor out = x;
  masked_fill_into(x, apart_from_own(mask, x), value, out);
  return x;
}

Tensor cat(const std::vector<Tensor>& tensors, int64_t dim) {
  LOCKSTEP_CHECK(!tensors.empty(), "[cat] expected at least one tensor, got none");
  std::vector<Tensor> parts;  // tensors of shape (0) are skipped
  for (const Tensor& x : tensors) {
    check_defined("cat", x);
    check_same_dtype("cat", tensors[0], x);
    check_same_device("cat", tensors[0], x);
    if (!(x.shape() == Shape{0})) parts.push_back(x);
  }
  if (parts.empty()) return tensors[0].clone();
  const Shape& first = parts[0].shape();
  const int d = check_dim("cat", parts[0], dim);
  for (const Tensor& x : parts) {
    bool fits = x.dim() == first.rank();
    for (int i = 0; fits && i < first.rank(); ++i) fits = i == d || x.shape()[i] == first[i];
    LOCKSTEP_CHECK(fits, "[cat] expected shapes that agree outside dim ", d, ", got ", first, " and ", x.shape(),
                   "; reshape or slice them");
  }
  return join(parts, d);
}

Tensor stack(const std::vector<Tensor>& tensors, int64_t dim) {
  LOCKSTEP_CHECK(!tensors.empty(), "[stack] expected at least one tensor, got none");
  std::vector<Tensor> parts;
  for (const Tensor& x : tensors) {
    check_defined("stack", x);
    check_same_dtype("stack", tensors[0], x);
    check_same_device("stack", tensors[0], x);
    LOCKSTEP_CHECK(x.shape() == tensors[0].shape(), "[stack] expected equal shapes, got ", tensors[0].shape(), " and ",
                   x.shape(), "; reshape or slice them");
    parts.push_back(x.unsqueeze(normalize_dim("stack", dim, x.dim() + 1)));
  }
  return join(parts, normalize_dim("stack", dim, tensors[0].dim() + 1));
}

Tensor pad(const Tensor& x, const std::vector<int64_t>& pad, Scalar value) {
  check_defined("pad", x);
  check_fits("pad", value, x.dtype());
  LOCKSTEP_CHECK(pad.size() % 2 == 0 && int64_t(pad.size()) <= 2 * x.dim(),
                 "[pad] expected (before, after) pairs for at most ", x.dim(), " dims, got ", pad.size(),
                 " numbers for shape ", x.shape());
  Shape shape = x.shape();
  for (size_t i = 0; i < pad.size(); ++i) shape[x.dim() - 1 - int(i / 2)] += pad[i];
  for (int64_t size : shape) {
    LOCKSTEP_CHECK(size >= 0, "[pad] expected padding that leaves sizes >= 0, got ", shape, " from ", x.shape(),
                   "; crop less");
  }
  const Tensor out = full(shape, value, options_of(x));
  // The part of x that cropping leaves, and its place in the result.
  Tensor source = x, target = out;
  for (int pair = 0; pair < int(pad.size() / 2); ++pair) {
    const int d = x.dim() - 1 - pair;
    const int64_t before = pad[size_t(2 * pair)], from = std::max<int64_t>(0, -before),
                  to = std::max<int64_t>(0, before);
    const int64_t length = std::max<int64_t>(0, std::min(x.shape()[d] - from, shape[d] - to));
    if (length == 0) return out;
    source = source.narrow(d, from, length);
    target = target.narrow(d, to, length);
  }
  kernels::copy(x.device(), source, target);
  return out;
}

Tensor tril(const Tensor& x, int64_t diagonal) { return triangle("tril", x, diagonal, false); }
Tensor triu(const Tensor& x, int64_t diagonal) { return triangle("triu", x, diagonal, true); }

}  // namespace lockstep
