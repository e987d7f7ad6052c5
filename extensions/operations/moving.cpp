// Flipped, rolled and repeated tensors, with their derivatives, and one_hot.
#include <algorithm>

#include "autograd/recorded.h"
#include "extensions/operations/operations.h"
#include "tensor/kernels.h"
#include "tensor/ops_common.h"

namespace lockstep {

Tensor flip(const Tensor& x, const Dims& dims) {
  check_defined("flip", x);
  uint32_t visited = 0;
  for (int64_t dim : dims) {
    const int d = check_dim("flip", x, dim);
    LOCKSTEP_CHECK(!(visited >> d & 1), "[flip] expected no dim twice, got ", dims);
    visited |= 1u << d;
  }
  Tensor out = x;
  for (int d = 0; d < x.dim(); ++d) {
    const int64_t n = x.shape()[d];
    if (!(visited >> d & 1) || n < 2) continue;
    out = index_select(out, d, arange(n - 1, -1, -1).to(x.device()));
  }
  return out.storage() == x.storage() ? out.clone() : out;
}

Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims) {
  check_defined("roll", x);
  if (dims.empty()) {
    LOCKSTEP_CHECK(shifts.size() == 1, "[roll] expected one shift when no dims are given, got ", shifts);
    return roll(x.reshape({x.numel()}), shifts, {0}).view(x.shape());
  }
  LOCKSTEP_CHECK(shifts.size() == dims.size(), "[roll] expected as many shifts as dims, got ", shifts, " and ", dims);
  for (int64_t dim : dims) check_dim("roll", x, dim);
  Tensor out = x;
  for (int i = 0; i < dims.size(); ++i) {
    const int d = normalize_dim("roll", dims[i], x.dim());
    const int64_t n = x.shape()[d];
    if (n == 0) continue;
    const int64_t shift = (shifts[i] % n + n) % n;
    if (shift > 0) out = cat({out.narrow(d, n - shift, shift), out.narrow(d, 0, n - shift)}, d);
  }
  return out.storage() == x.storage() ? out.clone() : out;
}

Tensor repeat(const Tensor& x, const Dims& repeats) {
  check_defined("repeat", x);
  LOCKSTEP_CHECK(repeats.size() >= x.dim(), "[repeat] expected at least ", x.dim(), " counts for shape ", x.shape(),
                 ", got ", repeats);
  for (int64_t count : repeats) LOCKSTEP_CHECK(count >= 0, "[repeat] expected counts >= 0, got ", repeats);
  Shape shape = x.shape();
  while (shape.rank() < repeats.size()) shape.insert(0, 1);
  Tensor out = x.reshape(shape);
  for (int d = shape.rank() - 1; d >= 0; --d) {  // innermost first, so that the largest copy moves the longest runs
    if (repeats[d] == 1) continue;
    const int64_t outer = numel_of(Shape(shape.begin(), shape.begin() + d));
    const int64_t inner = outer == 0 ? 0 : out.numel() / outer;
    shape[d] *= repeats[d];
    out = out.reshape({outer, 1, inner}).expand({outer, repeats[d], inner}).reshape(shape);
  }
  return out.storage() == x.storage() ? out.clone() : out;
}

Tensor one_hot(const Tensor& index, int64_t classes) {
  check_defined("one_hot", index);
  if (classes == -1) {
    LOCKSTEP_CHECK(index.numel() > 0, "[one_hot] expected classes >= 0 for an empty index, got -1");
    LOCKSTEP_CHECK(index.dtype() == i64, "[one_hot] expected an index of i64, got ", index.dtype(),
                   " (convert with .to(i64))");
    classes = std::max<int64_t>(0, max(index).item<int64_t>()) + 1;
  }
  LOCKSTEP_CHECK(classes >= 0, "[one_hot] expected classes >= 0, or -1 to infer them, got ", classes);
  check_index("one_hot", index, classes, index);
  Shape shape = index.shape();
  shape.push_back(classes);
  const Tensor out = zeros(shape, {.dtype = i64, .device = index.device()});
  if (out.numel() == 0) return out;
  const Shape column{index.numel(), 1};
  Tensor rows = out.view({index.numel(), classes});
  kernels::scatter(out.device(), false, full({}, 1, {.dtype = i64, .device = index.device()}).expand(column), 1,
                   index.reshape(column), rows);
  return out;
}

Variable flip(const Variable& x, const Dims& dims) {
  return on_tape("flip", {&x}, flip(x.tensor(), dims), [dims](auto& back) { back.give(0, flip(back.grad(), dims)); });
}

Variable roll(const Variable& x, const Dims& shifts, const Dims& dims) {
  Dims back_shifts = shifts;
  for (int64_t& shift : back_shifts) shift = -shift;
  return on_tape("roll", {&x}, roll(x.tensor(), shifts, dims),
                 [back_shifts, dims](auto& back) { back.give(0, roll(back.grad(), back_shifts, dims)); });
}

Variable repeat(const Variable& x, const Dims& repeats) {
  return on_tape("repeat", {&x}, repeat(x.tensor(), repeats), [shape = x.shape(), repeats](auto& back) {
    // For each repeated dim, view the gradient as (dims before, copies, size, dims after) and sum over the copies.
    auto grad = back.grad();
    for (int d = 0; d < repeats.rank(); ++d) {
      if (repeats[d] == 1) continue;
      Shape summed = grad.shape();
      summed[d] = repeats[d] > 0 ? summed[d] / repeats[d] : 0;
      const int place = d - (repeats.rank() - shape.rank());
      if (repeats[d] == 0) return back.give(0, zeros(shape, {grad.dtype(), grad.device()}));
      if (place >= 0) summed[d] = shape[place];
      const int64_t before = numel_of(Shape(summed.begin(), summed.begin() + d));
      const int64_t after = numel_of(Shape(summed.begin() + d + 1, summed.end()));
      grad = sum(grad.reshape({before, repeats[d], summed[d], after}), {1}).view(summed);
    }
    back.give(0, grad.reshape(shape));
  });
}

}  // namespace lockstep
