#include "parallel/tensor/functions.h"

#include "autograd/tape.h"
#include "tensor/ops.h"

namespace lockstep::tensor_parallel {
namespace {

const dist::CollectiveOptions background{.tag = "tensor parallel", .async = true};

/// The numbers of dims with the one at `from` moved to `to`.
Dims moved(int rank, int from, int to) {
  Dims order;
  for (int d = 0; d < rank; ++d)
    if (d != from) order.push_back(d);
  order.insert(to, from);
  return order;
}

/// x (..., n·m, ...) as (n, ..., m, ...), contiguous.
Tensor parts_first(const char* op, const Tensor& x, int64_t dim, int n) {
  const int d = normalize_dim(op, dim, x.dim());
  LOCKSTEP_CHECK(x.shape()[d] % n == 0, "[", op, "] expected a size that ", n, " ranks divide along dim ", dim,
                 ", got ", x.shape());
  Shape shape = x.shape();
  shape[d] /= n;
  shape.insert(d, n);
  return x.reshape(shape).permute(moved(shape.rank(), d, 0)).contiguous();
}

Tensor own_part(const char* op, const Tensor& x, int64_t dim, const dist::ProcessGroup& group) {
  const int d = normalize_dim(op, dim, x.dim());
  const int64_t all = x.shape()[d], each = all / group.size();
  LOCKSTEP_CHECK(all % group.size() == 0, "[", op, "] expected a size that ", group.size(), " ranks divide along dim ",
                 dim, ", got ", x.shape());
  return x.narrow(d, group.rank() * each, each).contiguous();
}

/// A tensor that may be overwritten.
Tensor owned(const Tensor& x) { return x.is_exclusive() && x.is_contiguous() ? x : x.clone(); }

}  // namespace

Pending Pending::all_reduce(const Tensor& x, dist::ProcessGroup& group) {
  Pending p;
  p.buffer_ = x;
  p.work_ = group.all_reduce(x, background);
  return p;
}

Pending Pending::all_gather(const Tensor& x, int64_t dim, dist::ProcessGroup& group) {
  Pending p;
  const int d = normalize_dim("all_gather", dim, x.dim());
  Shape shape = x.shape();
  shape.insert(0, group.size());
  p.buffer_ = empty(shape, {x.dtype(), x.device()});
  p.work_ = group.all_gather(p.buffer_, x.contiguous(), background);
  p.finish_ = [d](const Tensor& parts) {  // (n, ..., m, ...)
    Shape whole = parts.shape();
    whole.erase(0);
    whole[d] *= parts.shape()[0];
    return parts.permute(moved(parts.dim(), 0, d)).reshape(whole);
  };
  return p;
}

Pending Pending::reduce_scatter(const Tensor& x, int64_t dim, dist::ProcessGroup& group) {
  Pending p;
  const Tensor parts = parts_first("reduce_scatter", x, dim, group.size());
  Shape shape = parts.shape();
  shape.erase(0);
  p.buffer_ = empty(shape, {x.dtype(), x.device()});
  p.work_ = group.reduce_scatter(p.buffer_, parts, background);
  return p;
}

Tensor Pending::wait() {
  work_.wait();
  const Tensor buffer = std::move(buffer_);
  return finish_ ? finish_(buffer) : buffer;
}

Variable copy_to(const Variable& x, dist::ProcessGroup& group) {
  if (group.size() == 1 || !needs_grad({&x})) return x;
  return as_view(x, record("copy_to", {&x}, x.tensor(), [&group](Backward& back) {
                   back.give(0, Pending::all_reduce(owned(back.grad()), group).wait());
                 }));
}

Variable reduce_from(const Variable& x, dist::ProcessGroup& group) {
  if (group.size() == 1) return x;
  Tensor out = empty_like(x.tensor());
  group.all_reduce(out, x.tensor().contiguous(), {.tag = "tensor parallel"});
  if (!needs_grad({&x})) return out;
  return record("reduce_from", {&x}, std::move(out), [](Backward& back) { back.give(0, back.grad()); });
}

Variable scatter_to(const Variable& x, int64_t dim, dist::ProcessGroup& group) {
  if (group.size() == 1) return x;
  Tensor out = own_part("scatter_to", x.tensor(), dim, group);
  if (!needs_grad({&x})) return out;
  return record("scatter_to", {&x}, std::move(out),
                [dim, &group](Backward& back) { back.give(0, Pending::all_gather(back.grad(), dim, group).wait()); });
}

Variable gather_from(const Variable& x, int64_t dim, dist::ProcessGroup& group) {
  if (group.size() == 1) return x;
  Tensor out = Pending::all_gather(x.tensor(), dim, group).wait();
  if (!needs_grad({&x})) return out;
  return record("gather_from", {&x}, std::move(out),
                [dim, &group](Backward& back) { back.give(0, own_part("gather_from", back.grad(), dim, group)); });
}

Variable all_gather(const Variable& x, int64_t dim, dist::ProcessGroup& group) {
  if (group.size() == 1) return x;
  Tensor out = Pending::all_gather(x.tensor(), dim, group).wait();
  if (!needs_grad({&x})) return out;
  return record("all_gather", {&x}, std::move(out), [dim, &group](Backward& back) {
    back.give(0, Pending::reduce_scatter(back.grad(), dim, group).wait());
  });
}

Variable reduce_scatter(const Variable& x, int64_t dim, dist::ProcessGroup& group) {
  if (group.size() == 1) return x;
  Tensor out = Pending::reduce_scatter(x.tensor(), dim, group).wait();
  if (!needs_grad({&x})) return out;
  return record("reduce_scatter", {&x}, std::move(out),
                [dim, &group](Backward& back) { back.give(0, Pending::all_gather(back.grad(), dim, group).wait()); });
}

}  // namespace lockstep::tensor_parallel
