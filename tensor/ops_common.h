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
