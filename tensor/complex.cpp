// Complex tensors: views, angle(), and checks; complex.inc adds the composed functions. See complex.h.
#include "tensor/complex.h"

#include <cmath>

#include "tensor/cpu/parallel.h"
#include "tensor/ops_common.h"

namespace lockstep {
namespace {

const Tensor& tensor_in(const Tensor& x) { return x; }

/// Returns the text of an Error if x cannot be viewed as complex numbers: the first condition that it does not meet.
/// Returns null if x meets all of them.
const char* not_pairs(const Tensor& x) {
  if (x.dim() == 0 || x.shape().back() != 2) return "a last dim of size 2";
  if (x.numel() == 0) return nullptr;
  if (x.strides().back() != 1) return "a last dim of stride 1";
  for (int d = 0; d + 1 < x.dim(); ++d)
    if (x.shape()[d] > 1 && x.strides()[d] % 2 != 0) return "even strides";
  const auto address = reinterpret_cast<uintptr_t>(x.raw_data());
  return x.offset() % 2 != 0 || address % uintptr_t(2 * size_of(x.dtype())) != 0 ? "an even offset" : nullptr;
}

}  // namespace

bool can_view_as_complex(const Tensor& x) { return !not_pairs(x); }

Tensor view_as_real(const Tensor& x) {
  check_defined("view_as_real", x);
  LOCKSTEP_CHECK(is_complex(x.dtype()), "[view_as_real] expected a complex dtype, got ", x.dtype(), "; use .to(c64)");
  Shape shape = x.shape();
  Strides strides = x.strides();
  for (int64_t& stride : strides) stride *= 2;
  shape.push_back(2);
  strides.push_back(1);
  return Tensor(x.storage(), 2 * x.offset(), shape, strides, real_dtype(x.dtype()));
}

Tensor view_as_complex(const Tensor& x) {
  check_defined("view_as_complex", x);
  LOCKSTEP_CHECK(x.dtype() == f32 || x.dtype() == f64, "[view_as_complex] expected f32 or f64, got ", x.dtype(),
                 is_complex(x.dtype()) ? "; leave out this call" : "; use .to(f32)");
  const DType dtype = x.dtype() == f32 ? c64 : c128;
  check_complex_device("view_as_complex", dtype, x.device());
  const char* const lacks = not_pairs(x);
  LOCKSTEP_CHECK(!lacks, "[view_as_complex] expected ", lacks, ", got shape ", x.shape(), ", strides ", x.strides(),
                 ", offset ", x.offset(),
                 x.dim() > 0 && x.shape().back() == 2 ? "; use clone()" : "; reshape to (..., 2)");
  Shape shape = x.shape();
  shape.erase(x.dim() - 1);
  Strides strides;
  for (int d = 0; d + 1 < x.dim(); ++d) strides.push_back(x.strides()[d] / 2);
  return Tensor(x.storage(), x.offset() / 2, shape, strides, dtype);
}

Tensor complex_part(const Tensor& x, int part) {
  Strides strides = x.strides();
  for (int64_t& stride : strides) stride *= 2;
  return Tensor(x.storage(), 2 * x.offset() + (x.numel() > 0 ? part : 0), x.shape(), strides, real_dtype(x.dtype()));
}

Tensor angle(const Tensor& x) {
  check_defined("angle", x);
  LOCKSTEP_CHECK(is_complex(x.dtype()), "[angle] expected a complex dtype, got ", x.dtype(), "; use .to(c64)");
  const Tensor source = x.contiguous(), out = empty(x.shape(), {.dtype = real_dtype(x.dtype()), .device = x.device()});
  if (x.numel() == 0) return out;
  dispatch<float, double>(out.dtype(), "angle", [&]<class T> {
    const auto* from = source.data<std::complex<T>>();
    T* to = out.data<T>();
    on_cpu::parallel_for(x.numel(), 1 << 12, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = std::atan2(from[i].imag(), from[i].real());
    });
  });
  return out;
}

template <class T> Tensor full(const Shape& shape, std::complex<T> value, TensorOptions options) {
  LOCKSTEP_CHECK(is_complex(options.dtype), "[full] expected a complex dtype for a complex value, got ", options.dtype);
  const Tensor out = full(shape, value.real(), options);
  if (value.imag() != 0) complex_part(out, 1).fill_(value.imag());
  return out;
}
template Tensor full(const Shape& shape, std::complex<double> value, TensorOptions options);

const Tensor& complex_in_place(const char* name, PointwiseOp op, const Tensor& x, const Tensor& b) {
  LOCKSTEP_CHECK(is_complex(x.dtype()), "[", name, "] cannot write ", b.dtype(), " into ", x.dtype(),
                 "; take real(), imag() or abs() of b, or write to a complex tensor");
  if (x.dtype() != b.dtype() || (op != PointwiseOp::add && op != PointwiseOp::sub))
    return x.copy_(complex_binary(name, op, x, b));
  const Tensor pairs = view_as_real(x), other = view_as_real(b);
  op == PointwiseOp::add ? add_(pairs, other) : sub_(pairs, other);
  return x;
}

void fail_complex(const char* op, DType dtype) {
  fail(str("[", op, "] expected a real dtype, got ", dtype, "; compute with real() and imag(), or view_as_real()"));
}

void check_complex_device(const char* op, DType dtype, Device device) {
  LOCKSTEP_CHECK(!is_complex(dtype) || device.is_cpu(), "[", op,
                 "] complex tensors are supported on the CPU only, got ", dtype, " on ", device,
                 "; move with .to(cpu), or keep (..., 2) pairs there");
}

void check_stays_complex(const char* op, DType from, DType to) {
  LOCKSTEP_CHECK(!is_complex(from) || is_complex(to), "[", op, "] ", to, " cannot hold ", from,
                 "; take real(), imag(), abs() or view_as_real()");
}

}  // namespace lockstep

#define Value Tensor
#include "tensor/complex.inc"
#undef Value
