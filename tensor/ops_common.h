#pragma once
// Argument checks that most operations share; op names the operation in the Error. Internal to the tensor library.
#include "tensor/tensor.h"

namespace lockstep {

/// Error for a default-constructed tensor.
inline void check_defined(const char* op, const Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.defined(), "[", op, "] tensor is undefined; assign one to it first");
}

/// Error when the dtypes differ.
inline void check_same_dtype(const char* op, const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.dtype() == b.dtype(), "[", op, "] expected one dtype, got ", a.dtype(), " and ", b.dtype(),
                 " (convert with .to(dtype))");
}

/// Error when the devices differ.
inline void check_same_device(const char* op, const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.device() == b.device(), "[", op, "] expected one device, got ", a.shape(), " on ", a.device(),
                 " and ", b.shape(), " on ", b.device(), " (move with .to(device))");
}

/// Error unless the dtype is f32, f64, f16 or bf16.
inline void check_floating(const char* op, const Tensor& tensor) {
  check_defined(op, tensor);
  LOCKSTEP_CHECK(is_floating(tensor.dtype()), "[", op, "] expected a floating dtype, got ", tensor.dtype(),
                 "; convert it with .to(f32)");
}

/// Error unless a and b can be multiplied as matrices: one floating dtype and one device. takes_integers: integers on
/// the CPU, too.
inline void check_product(const char* op, const Tensor& a, const Tensor& b, bool takes_integers = false) {
  for (const Tensor* x : {&a, &b}) {
    check_defined(op, *x);
    const bool integers = takes_integers && is_integral(x->dtype());
    if (!integers) check_floating(op, *x);
    LOCKSTEP_CHECK(!integers || x->device().is_cpu(), "[", op, "] integer products are supported on the CPU only, got ",
                   x->dtype(), " on ", x->device(), "; move with .to(cpu), or convert with .to(f32)");
  }
  check_same_dtype(op, a, b);
  check_same_device(op, a, b);
}

/// The dim, counted from 0. Error for a scalar, and for a dim that x lacks.
inline int check_dim(const char* op, const Tensor& x, int64_t dim) {
  check_defined(op, x);
  LOCKSTEP_CHECK(x.dim() > 0, "[", op, "] expected a tensor of at least one dim, got a scalar; unsqueeze(0) it");
  return normalize_dim(op, dim, x.dim());
}

/// Error unless an index is i64, on x's device, with all values in [0, size). Values on the CPU are checked here. Other
/// devices would have to wait, so their kernels check the values, and the next synchronisation throws.
void check_index(const char* op, const Tensor& index, int64_t size, const Tensor& x);

/// Error when an in-place operation would write an element several times (a dim expanded by stride 0): the result would
/// depend on the order of the writes.
inline void check_writable(const char* op, const Tensor& tensor) {
  check_defined(op, tensor);
  if (tensor.numel() == 0) return;
  for (int dim = 0; dim < tensor.dim(); ++dim)
    LOCKSTEP_CHECK(tensor.strides()[dim] != 0 || tensor.shape()[dim] <= 1, "[", op,
                   "] expected a tensor without repeated elements, got one expanded along dim ", dim, "; use .clone()");
}

/// Error unless `tensor` has x's dtype and device and the given shape; the Error calls the tensor `name`.
inline void check_like(const char* op, const char* name, const Tensor& tensor, const Tensor& x, const Shape& shape) {
  check_defined(op, tensor);
  check_same_device(op, x, tensor);
  check_same_dtype(op, x, tensor);
  LOCKSTEP_CHECK(tensor.shape() == shape, "[", op, "] expected ", name, " of shape ", shape, ", got ", tensor.shape());
}

/// True if shape `from` broadcasts to shape `to`.
inline bool broadcasts_to(const Shape& from, const Shape& to) {
  bool fits = from.rank() <= to.rank();
  for (int d = 1; fits && d <= from.rank(); ++d) {
    const int64_t size = from[from.rank() - d];
    fits = size == 1 || size == to[to.rank() - d];
  }
  return fits;
}

/// Size of a dim of x; a scalar counts as having one dim of size 1.
inline int64_t size_at(const Tensor& x, int dim) { return x.dim() == 0 ? 1 : x.shape()[dim]; }

}  // namespace lockstep
