// Attention and rotary position embedding: checks, allocation of results, kernel calls.
#include <algorithm>
#include <cmath>

#include "tensor/block_layout.h"
#include "tensor/flops.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"

namespace lockstep {
namespace {

void check_layout(const char* op, const BlockLayout& layout, const Tensor& q, const Tensor& k,
                  const AttentionArgs& args) {
  const int64_t keys = k.shape()[2], last = args.first_head + q.shape()[1];
  LOCKSTEP_CHECK(layout.block >= 1 && layout.blocks == (keys + layout.block - 1) / layout.block, "[", op,
                 "] expected a layout made for ", keys, " keys, got one of ", layout.blocks, " blocks of ",
                 layout.block, " keys; make a layout for these keys");
  LOCKSTEP_CHECK(q.shape()[2] <= keys, "[", op, "] expected no more queries than keys with a layout, got ",
                 q.shape()[2], " and ", keys, "; pass more keys, or no layout");
  LOCKSTEP_CHECK(layout.heads == 1 || layout.heads >= last, "[", op, "] expected a layout of 1 head or at least ", last,
                 " heads, got ", layout.heads, "; make it for all heads");
  check_same_device(op, q, layout.row_start);
  check_same_device(op, q, layout.columns);
  LOCKSTEP_CHECK(layout.row_start.dtype() == i32 && layout.columns.dtype() == i32 &&
                     layout.row_start.shape() == Shape({layout.heads, layout.blocks + 1}) &&
                     layout.row_start.is_contiguous() && layout.columns.is_contiguous(),
                 "[", op, "] expected contiguous i32 row_start (heads, blocks + 1) and columns in the layout, got ",
                 layout.row_start.dtype(), " ", layout.row_start.shape(), " and ", layout.columns.dtype());
}

/// Checks shared by forward and backward. Returns args with the scale filled in, and window 0 if it hides no key.
AttentionArgs check_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                              AttentionArgs args) {
  check_floating(op, q);
  check_defined(op, k);
  LOCKSTEP_CHECK(q.dim() == 4 && k.dim() == 4, "[", op, "] expected q (B, H, T, D) and k (B, G, S, D), got ", q.shape(),
                 " and ", k.shape(), "; reshape them (unsqueeze() adds a dim)");
  const int64_t heads = q.shape()[1], groups = k.shape()[1], width = q.shape()[3];
  LOCKSTEP_CHECK(groups > 0 && heads % groups == 0, "[", op,
                 "] expected the heads of q to be a multiple of the heads of k, got ", heads, " and ", groups);
  check_like(op, "k", k, q, {q.shape()[0], groups, k.shape()[2], width});
  check_like(op, "v", v, q, k.shape());
  LOCKSTEP_CHECK(args.dropout >= 0 && args.dropout <= 1, "[", op, "] expected a dropout probability from 0 to 1, got ",
                 args.dropout);
  LOCKSTEP_CHECK(std::isfinite(args.scale), "[", op, "] expected a finite scale, got ", args.scale);
  if (mask.defined()) {
    const Shape scores{q.shape()[0], heads, q.shape()[2], k.shape()[2]};
    check_same_device(op, q, mask);
    LOCKSTEP_CHECK(mask.dtype() == boolean || mask.dtype() == q.dtype(), "[", op, "] expected a mask of dtype bool or ",
                   q.dtype(), ", got ", mask.dtype(), "; convert it with .to(dtype)");
    LOCKSTEP_CHECK(broadcasts_to(mask.shape(), scores), "[", op,
                   "] expected a mask that broadcasts to (B, H, T, S) = ", scores, ", got ", mask.shape(),
                   "; reshape it");
  }
  LOCKSTEP_CHECK(args.window >= 0 && (args.window == 0 || args.causal), "[", op,
                 "] expected a window of at least one key, with causal, or 0 for none, got ", args.window,
                 args.causal ? "" : " without causal");
  LOCKSTEP_CHECK(args.window == 0 || !args.layout, "[", op,
                 "] a window cannot be combined with a block layout; use a layout that has a window (local, bigbird)");
  if (args.window >= k.shape()[2]) args.window = 0;
  if (args.layout) check_layout(op, *args.layout, q, k, args);
  if (args.scale == 0) args.scale = 1 / std::sqrt(double(std::max<int64_t>(width, 1)));
  return args;
}

/// Returns x if its last dim has stride 1, as kernels require, else a contiguous copy.
Tensor with_unit_stride(const Tensor& x) {
  return x.shape().back() <= 1 || x.strides().back() == 1 ? x : x.contiguous();
}

Tensor expand_mask(const Tensor& mask, const Tensor& q, const Tensor& k) {
  return mask.defined() ? mask.expand({q.shape()[0], q.shape()[1], q.shape()[2], k.shape()[2]}) : mask;
}

/// An uninitialised tensor of shape (B, H, T, D), a view of memory in the order (B, T, H, D).
Tensor empty_heads(const Shape& shape, const Tensor& like) {
  return empty({shape[0], shape[2], shape[1], shape[3]}, {like.dtype(), like.device()}).transpose(1, 2);
}

/// Multiply-accumulates of attention: for each pair of a query and a key it attends to, D for the score and D for the
/// weighted value.
int64_t macs_of(const Tensor& q, const Tensor& k, const AttentionArgs& args) {
  const int64_t rows = q.shape()[2], keys = k.shape()[2], each = q.shape()[0] * q.shape()[1] * q.shape()[3];
  if (args.layout) return int64_t(2 * attended_pairs(*args.layout, rows, keys, args.causal) * double(each));
  return 2 * each * attended_pairs(rows, keys, args.causal, args.window);
}

DType lse_dtype(const Tensor& q) { return q.dtype() == f64 ? f64 : f32; }

AttentionArgs check_attention_grad(const char* op, const Tensor& grad, const Tensor& q, const Tensor& k,
                                   const Tensor& v, const Tensor& mask, const AttentionResult& saved,
                                   AttentionArgs args) {
  args = check_attention(op, q, k, v, mask, args);
  check_like(op, "grad", grad, q, q.shape());
  check_like(op, "the saved out", saved.out, q, q.shape());
  check_defined(op, saved.lse);
  const Shape rows{q.shape()[0], q.shape()[1], q.shape()[2]};
  LOCKSTEP_CHECK(saved.lse.shape() == rows && saved.lse.dtype() == lse_dtype(q), "[", op,
                 "] expected the saved lse of shape ", rows, " and dtype ", lse_dtype(q), ", got ", saved.lse.shape(),
                 " and ", saved.lse.dtype(), "; pass the result of attention()");
  return args;
}

void run_attention_grad(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                        const AttentionResult& saved, const AttentionArgs& args, Tensor& grad_q, Tensor& grad_k,
                        Tensor& grad_v) {
  kernels::attention_grad(q.device(), with_unit_stride(grad), with_unit_stride(q), with_unit_stride(k),
                          with_unit_stride(v), expand_mask(mask, q, k), with_unit_stride(saved.out),
                          saved.lse.contiguous(), args, grad_q, grad_k, grad_v);
}

}  // namespace

Tensor causal_mask(int64_t queries, int64_t keys, int64_t window, Device device) {
  const Tensor all = ones({queries, keys}, {.dtype = boolean, .device = device});
  const Tensor past = tril(all, keys - queries);
  return window > 0 ? logical_and(past, triu(all, keys - queries - window + 1)) : past;
}

AttentionResult attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, AttentionArgs args) {
  args = check_attention("attention", q, k, v, mask, args);
  AttentionResult result{empty_heads(q.shape(), q),
                         empty({q.shape()[0], q.shape()[1], q.shape()[2]}, {lse_dtype(q), q.device()})};
  if (MacCounter::active()) MacCounter::add(macs_of(q, k, args));
  kernels::attention(q.device(), with_unit_stride(q), with_unit_stride(k), with_unit_stride(v), expand_mask(mask, q, k),
                     args, result.out, result.lse);
  return result;
}

AttentionGrad attention_grad(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                             const AttentionResult& saved, AttentionArgs args) {
  args = check_attention_grad("attention_grad", grad, q, k, v, mask, saved, args);
  AttentionGrad result{empty_heads(q.shape(), q), empty_heads(k.shape(), q), empty_heads(k.shape(), q)};
  run_attention_grad(grad, q, k, v, mask, saved, args, result.q, result.k, result.v);
  return result;
}

void attention_grad_into(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                         const AttentionResult& saved, AttentionArgs args, Tensor& grad_q, Tensor& grad_k,
                         Tensor& grad_v) {
  const char* const op = "attention_grad_into";
  args = check_attention_grad(op, grad, q, k, v, mask, saved, args);
  check_like(op, "grad_q", grad_q, q, q.shape());
  check_like(op, "grad_k", grad_k, q, k.shape());
  check_like(op, "grad_v", grad_v, q, k.shape());
  for (const Tensor* out : {&grad_q, &grad_k, &grad_v})
    LOCKSTEP_CHECK(out->shape().back() <= 1 || out->strides().back() == 1, "[", op,
                   "] expected outputs with stride 1 in the last dim, got strides ", out->strides(),
                   "; pass contiguous ones");
  run_attention_grad(grad, q, k, v, mask, saved, args, grad_q, grad_k, grad_v);
  for (const Tensor* out : {&grad_q, &grad_k, &grad_v}) out->storage()->bump_version(op);
}

namespace {
/// Rotates x (..., T, D), with stride 1 in D, into out, which may be x.
void rotate(const char* op, const Tensor& x, const Tensor& cosine, const Tensor& sine, bool inverse, Tensor& out) {
  const Shape table{x.shape()[x.dim() - 2], x.shape().back() / 2};
  for (const Tensor* angle : {&cosine, &sine}) {
    check_defined(op, *angle);
    check_same_device(op, x, *angle);
    LOCKSTEP_CHECK(angle->shape() == table, "[", op, "] expected cosine and sine of shape (T, D / 2) = ", table,
                   ", got ", angle->shape(), "; make them for this x");
    LOCKSTEP_CHECK(angle->dtype() == x.dtype() || (angle->dtype() == f32 && x.dtype() != f64), "[", op,
                   "] expected cosine and sine of dtype ", x.dtype(), x.dtype() == f64 ? "" : " or f32", ", got ",
                   angle->dtype(), "; convert them with .to(dtype)");
  }
  check_same_dtype(op, cosine, sine);
  kernels::rotary(x.device(), x, cosine.contiguous(), sine.contiguous(), inverse, out);
}
}  // namespace

Tensor rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool inverse) {
  check_floating("rotary", x);
  LOCKSTEP_CHECK(x.dim() >= 2 && x.shape().back() % 2 == 0,
                 "[rotary] expected x of shape (..., T, D) with D even, got ", x.shape(), "; reshape x");
  Tensor out = empty_like(x);
  rotate("rotary", with_unit_stride(x), cosine, sine, inverse, out);
  return out;
}

Tensor rotary_packed(Tensor x, int64_t turned, int64_t heads, const Tensor& cosine, const Tensor& sine, bool inverse) {
  const char* const op = "rotary_packed";
  check_floating(op, x);
  check_defined(op, cosine);
  LOCKSTEP_CHECK(x.dim() == 3 && heads >= 1 && x.shape()[2] % heads == 0 && turned >= 0 && turned <= heads, "[", op,
                 "] expected x (B, T, C), with C a multiple of heads = ", heads, " and 0 to heads rotated, got ",
                 x.shape(), " and ", turned, " rotated; reshape x, or change the numbers of heads");
  const int64_t width = x.shape()[2] / heads, features = cosine.dim() == 2 ? 2 * cosine.shape()[1] : -1;
  LOCKSTEP_CHECK(features >= 0 && features <= width, "[", op, "] expected a cosine (T, at most ", width / 2,
                 ") for heads of ", width, ", got ", cosine.shape(), "; make it for this width");
  if (!x.is_exclusive() || !x.is_contiguous()) x = x.clone();
  Tensor part = x.view({x.shape()[0], x.shape()[1], heads, width}).narrow(2, 0, turned).narrow(3, 0, features);
  part = part.transpose(1, 2);
  rotate(op, part, cosine, sine, inverse, part);
  x.storage()->bump_version(op);
  return x;
}

}  // namespace lockstep
