#pragma once
// Complex tensors (c64, c128), on the CPU only. add, sub, mul, div, neg, abs, square, reciprocal, sum, where and the
// operations with a number take them too (tensor/ops.h); views, copies, indexing and joining move them as they are.
// What is not in complex.def or here refuses them.
#include <complex>

#include "tensor/ops.h"

namespace lockstep {

#define Value Tensor
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/complex.def"
#undef Value

/// All elements `value`; Error unless options.dtype is complex.
template <class T> Tensor full(const Shape& shape, std::complex<T> value, TensorOptions options);  ///< T double

/// Whether view_as_complex takes x, of f32 or f64, as it lies.
bool can_view_as_complex(const Tensor& x);
/// The real (0) or imaginary (1) parts: a view, of any rank.
Tensor complex_part(const Tensor& x, int part);
/// x op= b, for operations that complex_binary knows.
const Tensor& complex_in_place(const char* name, PointwiseOp op, const Tensor& x, const Tensor& b);

inline bool any_complex(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && (is_complex(a.dtype()) || is_complex(b.dtype()));
}

[[noreturn]] void fail_complex(const char* op, DType dtype);
void check_complex_device(const char* op, DType dtype, Device device);
/// That no imaginary part is lost between the two.
void check_stays_complex(const char* op, DType from, DType to);

}  // namespace lockstep
