// Pointwise operations on CUDA: looks up the kernel in the tables (pointwise_table.h).
#include "tensor/cuda/pointwise_table.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {
namespace {

constexpr int64_t worth_a_copy = 1 << 16;  // elements; for larger tensors an extra copy pays

// True if x is a large transposed operand: not broadcast, and strided along the innermost dim of a contiguous `out`.
// Copying it to row-major order first (a tiled transpose) moves less memory than strided reads.
bool is_across(const Tensor& x, const Tensor& out) {
  if (out.numel() < worth_a_copy || !out.is_contiguous() || x.is_contiguous() || x.numel() != out.numel()) return false;
  int last = x.dim() - 1;
  while (last >= 0 && x.shape()[last] == 1) --last;
  if (last < 0 || x.strides()[last] <= 1) return false;
  for (int64_t stride : x.strides()) {
    if (stride == 1) return true;
  }
  return false;
}

}  // namespace

void pointwise(PointwiseOp op, PointwisePart part, const PointwiseArgs& args, const Tensor* const* in, int count,
               Tensor& out) {
  if (out.numel() == 0) return;
  const int dtype = int(in[count - 1]->dtype());
  const auto find = [&](const PointwiseTable& unary, const PointwiseTable& binary) {
    const PointwiseFn fn = unary[size_t(op)][dtype];
    return fn ? fn : binary[size_t(op)][dtype];
  };
  const PointwiseFn fn = part == PointwisePart::value   ? find(unary_values, binary_values)
                         : part == PointwisePart::grad0 ? find(unary_grads, binary_grads0)
                                                        : binary_grads1[size_t(op)][dtype];
  LOCKSTEP_CHECK(fn, "[pointwise] no cuda kernel for operation ", int(op), " part ", int(part), " of ",
                 in[count - 1]->dtype(), "; convert to another dtype or move the tensors to cpu");
  const Tensor* straight[3];
  Tensor copies[3];
  for (int i = 0; i < count; ++i) {
    straight[i] = in[i];
    if (is_across(*in[i], out)) {
      copies[i] = in[i]->contiguous();
      straight[i] = &copies[i];
    }
  }
  fn(args, straight, out);
}

void pointwise_grads(PointwiseOp op, const Tensor& grad, const Tensor& a, const Tensor& b, Tensor& grad_a,
                     Tensor& grad_b) {
  const PointwisePairFn fn = binary_grads[size_t(op)][int(grad.dtype())];
  LOCKSTEP_CHECK(fn, "[pointwise_grads] no cuda kernel for operation ", int(op), " of ", grad.dtype(),
                 "; convert to another dtype or move the tensors to cpu");
  const auto straight = [&](const Tensor& x) { return is_across(x, grad_b) ? x.contiguous() : x; };
  fn(straight(grad), straight(a), straight(b), grad_a, grad_b);
}

}  // namespace lockstep::on_cuda
