#pragma once
// Complex tensors (c64, c128), on the CPU only. add, sub, mul, div, neg, abs, square, reciprocal, sum, where and the
// operations with a number accept them too (tensor/ops.h); views, copies, indexing and joining treat them like any
// element. All other operations raise an Error for them.
#include "tensor/ops.h"

namespace lockstep {

/// True if view_as_complex(x) is possible without a copy; x is f32 or f64.
bool can_view_as_complex(const Tensor& x);
/// The real (part = 0) or imaginary (part = 1) parts: a view, for any number of dims.
Tensor complex_part(const Tensor& x, int part);
/// x op= b, for the operations of complex_binary(); `name` names the caller in Errors.
const Tensor& complex_in_place(const char* name, PointwiseOp op, const Tensor& x, const Tensor& b);

/// True if a and b are defined and at least one of them is complex.
inline bool any_complex(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && (is_complex(a.dtype()) || is_complex(b.dtype()));
}

/// Throws the Error of an operation that takes no complex numbers.
[[noreturn]] void fail_complex(const char* op, DType dtype);
/// Error for a complex dtype on another device than the CPU.
void check_complex_device(const char* op, DType dtype, Device device);
/// Error when a conversion would lose imaginary parts: complex to real.
void check_stays_complex(const char* op, DType from, DType to);

}  // namespace lockstep
