// Differentiable collectives. See functions.h.
#include "parallel/tensor_parallel/functions.h"

#include "autograd/tape.h"
#include "tensor/ops.h"

namespace lockstep::tensor_parallel {
namespace {

dist::CollectiveOptions options(bool background = true) { return {.tag = "tensor parallel", .async = background}; }

/// Returns `dim` counted from the front. Error unless the number of ranks divides the size of `dim`.
int divided_dim(const char* op, const Tensor& x, int64_t dim, const dist::ProcessGroup& group) {
  const int d = normalize_dim(op, dim, x.dim());
  LOCKSTEP_CHECK(x.shape()[d] % group.size() == 0, "[", op, "] expected a size that ", group.size(),
                 " ranks divide along dim ", dim, ", got ", x.shape(), "; pad it, or change the number of ranks");
  return d;
}

/// before(): number of elements of the dims before d. from(): number of elements of the dims from d on.
int64_t before(const Shape& shape, int d) { return numel_of(Shape(shape.begin(), shape.begin() + d)); }
int64_t from(const Shape& shape, int d) { return numel_of(Shape(shape.begin() + d, shape.end())); }

/// Returns x itself if x may be overwritten, else a copy of x.
Tensor owned(const Tensor& x) { return x.is_exclusive() && x.is_contiguous() ? x : x.clone(); }

}  // namespace

Pending Pending::all_reduce(const Tensor& x, dist::ProcessGroup& group, bool background) {
  Pending p;
  p.buffer_ = x;
  p.work_ = group.all_reduce(x, options(background));
  return p;
}

Pending Pending::all_reduce(const Tensor& into, const Tensor& x, dist::ProcessGroup& group) {
  Pending p;
  p.buffer_ = into;
  p.work_ = group.all_reduce(into, x, options());
  return p;
}

Pending Pending::all_gather(const Tensor& x, int64_t dim, dist::ProcessGroup& group, const Tensor& into) {
  Pending p;
  const int d = normalize_dim("all_gather", dim, x.dim());
  Shape full = x.shape();
  full[d] *= group.size();
  const int64_t outer = before(x.shape(), d), inner = from(x.shape(), d);
  const bool lies_there = into.defined() && outer == 1;
  p.buffer_ =
      lies_there ? into.view({group.size(), 1, inner}) : empty({group.size(), outer, inner}, {x.dtype(), x.device()});
  p.work_ = group.all_gather(p.buffer_, x.contiguous(), options());
  p.finish_ = [full, into, lies_there](const Tensor& parts) {
    if (!into.defined()) return parts.transpose(0, 1).reshape(full);
    if (!lies_there) into.view({parts.size(1), parts.size(0), parts.size(2)}).copy_(parts.transpose(0, 1));
    return into;
  };
  return p;
}

Pending Pending::reduce_scatter(const Tensor& x, int64_t dim, dist::ProcessGroup& group, const Tensor& into,
                                bool background) {
  Pending p;
  const int d = divided_dim("reduce_scatter", x, dim, group);
  Shape each = x.shape();
  each[d] /= group.size();
  const Tensor parts = x.reshape({before(each, d), group.size(), from(each, d)}).transpose(0, 1).contiguous();
  p.buffer_ = into.defined() ? into : empty(each, {x.dtype(), x.device()});
  p.work_ = group.reduce_scatter(p.buffer_, parts, options(background));
  return p;
}

Pending Pending::all(std::vector<Pending> parts, const Tensor& result) {
  Pending p;
  p.buffer_ = result;
  p.finish_ = [parts = std::move(parts)](const Tensor& all) mutable {
    for (Pending& part : parts) part.wait();
    return all;
  };
  return p;
}

Tensor Pending::wait() {
  work_.wait();
  const Tensor buffer = std::move(buffer_);
  return finish_ ? finish_(buffer) : buffer;
}

namespace {

using Move = Tensor (*)(const Tensor& x, int64_t dim, dist::ProcessGroup& group);

Tensor own_part(const Tensor& x, int64_t dim, dist::ProcessGroup& group) {
  const int d = divided_dim("scatter_to", x, dim, group);
  const int64_t each = x.shape()[d] / group.size();
  return x.narrow(d, group.rank() * each, each).contiguous();
}
Tensor gathered(const Tensor& x, int64_t dim, dist::ProcessGroup& group) {
  return Pending::all_gather(x, dim, group).wait();
}
Tensor scattered(const Tensor& x, int64_t dim, dist::ProcessGroup& group) {
  return Pending::reduce_scatter(x, dim, group).wait();
}

Variable operation(const char* name, const Variable& x, int64_t dim, dist::ProcessGroup& group, Move forward,
                   Move backward) {
  if (group.size() == 1) return x;
  Tensor out = forward(x.tensor(), dim, group);
  if (!needs_grad({&x})) return out;
  return record(name, {&x}, std::move(out),
                [dim, &group, backward](Backward& back) { back.give(0, backward(back.grad(), dim, group)); });
}

}  // namespace

Variable copy_to(const Variable& x, dist::ProcessGroup& group) {
  if (group.size() == 1 || !needs_grad({&x})) return x;
  return as_view(x, record("copy_to", {&x}, x.tensor(), [&group](Backward& back) {
                   back.give(0, Pending::all_reduce(owned(back.grad()), group).wait());
                 }));
}

Variable reduce_from(const Variable& x, dist::ProcessGroup& group) {
  if (group.size() == 1) return x;
  Tensor out = empty_like(x.tensor());
  group.all_reduce(out, x.tensor().contiguous(), options(false));
  if (!needs_grad({&x})) return out;
  return record("reduce_from", {&x}, std::move(out), [](Backward& back) { back.give(0, back.grad()); });
}

Variable scatter_to(const Variable& x, int64_t dim, dist::ProcessGroup& group) {
  return operation("scatter_to", x, dim, group, own_part, gathered);
}
Variable gather_from(const Variable& x, int64_t dim, dist::ProcessGroup& group) {
  return operation("gather_from", x, dim, group, gathered, own_part);
}
Variable all_gather(const Variable& x, int64_t dim, dist::ProcessGroup& group) {
  return operation("all_gather", x, dim, group, gathered, scattered);
}
Variable reduce_scatter(const Variable& x, int64_t dim, dist::ProcessGroup& group) {
  return operation("reduce_scatter", x, dim, group, scattered, gathered);
}

}  // namespace lockstep::tensor_parallel
