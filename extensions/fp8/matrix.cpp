// Checks and fallbacks for matrices in 8-bit floats. See matrix.h.
#include "extensions/fp8/matrix.h"

#include "extensions/fp8/kernels.h"
#include "tensor/flops.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"

namespace lockstep {

namespace kernels {
constinit const Op<CastFp8> cast_fp8{"cast_fp8", on_cpu::cast_fp8, LOCKSTEP_ON_CUDA(on_cuda::cast_fp8)};
constinit const Op<ReadFp8> read_fp8{"read_fp8", on_cpu::read_fp8, LOCKSTEP_ON_CUDA(on_cuda::read_fp8)};
constinit const Op<MatmulFp8> matmul_fp8{"matmul_fp8", on_cpu::matmul_fp8, LOCKSTEP_ON_CUDA(on_cuda::matmul_fp8)};
}  // namespace kernels

namespace {

bool is_number(const Tensor& x) { return x.defined() && x.dtype() == f32 && x.numel() == 1; }

void check_fp8(const char* op, const Fp8Matrix& m) {
  check_defined(op, m.codes);
  LOCKSTEP_CHECK(m.codes.dtype() == u8 && m.codes.dim() == 2 && m.codes.is_contiguous(), "[", op,
                 "] expected codes u8 (rows, K), contiguous (call .contiguous()), got ", m.codes.dtype(), " ",
                 m.codes.shape());
  LOCKSTEP_CHECK(is_number(m.scale_inv), "[", op, "] expected scale_inv to be an f32 tensor of one element, got ",
                 m.scale_inv.defined() ? str(m.scale_inv.dtype(), " ", m.scale_inv.shape()) : "none");
  check_same_device(op, m.codes, m.scale_inv);
}

}  // namespace

std::string_view name_of(Fp8Format format) { return format == Fp8Format::e4m3 ? "e4m3" : "e5m2"; }

Fp8Cast cast_fp8(const Tensor& x, const Fp8CastArgs& args) {
  check_floating("cast_fp8", x);
  LOCKSTEP_CHECK(x.dim() == 2 && x.dtype() != f64, "[cast_fp8] expected x (R, C) in f32, f16 or bf16, got ", x.dtype(),
                 " ", x.shape(), "; convert or reshape it");
  LOCKSTEP_CHECK(is_number(args.scale), "[cast_fp8] expected a scale f32 of one element, such as ones({1})");
  check_same_device("cast_fp8", x, args.scale);
  LOCKSTEP_CHECK(!args.amax.defined() || is_number(args.amax),
                 "[cast_fp8] expected an amax f32 of one element, such as zeros({1})");
  if (args.amax.defined()) check_same_device("cast_fp8", x, args.amax);
  const int64_t rows = x.size(0), columns = x.size(1);
  Fp8Cast made;
  if (args.straight) made.codes = empty({rows, columns}, {.dtype = u8, .device = x.device()});
  if (args.turned) made.turned = empty({columns, rows}, {.dtype = u8, .device = x.device()});
  Tensor amax = args.amax;
  if (x.numel() > 0)
    kernels::cast_fp8(x.device(), x.contiguous(), args.format, args.scale, amax, made.codes, made.turned);
  return made;
}

Tensor read_fp8(const Tensor& codes, Fp8Format format, DType dtype) {
  check_defined("read_fp8", codes);
  LOCKSTEP_CHECK(codes.dtype() == u8, "[read_fp8] expected codes u8, got ", codes.dtype(), "; cast_fp8() makes them");
  LOCKSTEP_CHECK(dtype == f32 || dtype == bf16, "[read_fp8] expected the dtype f32 or bf16, got ", dtype);
  Tensor out = empty(codes.shape(), {.dtype = dtype, .device = codes.device()});
  if (out.numel() > 0) kernels::read_fp8(codes.device(), codes.contiguous(), format, out);
  return out;
}

Tensor matmul_fp8(const Fp8Matrix& a, const Fp8Matrix& b, const Tensor& bias, DType dtype) {
  check_fp8("matmul_fp8", a), check_fp8("matmul_fp8", b);
  check_same_device("matmul_fp8", a.codes, b.codes);
  const int64_t m = a.codes.size(0), n = b.codes.size(0), k = a.codes.size(1);
  LOCKSTEP_CHECK(k == b.codes.size(1), "[matmul_fp8] expected a (M, K) and b (N, K) with one K, got ", a.codes.shape(),
                 " and ", b.codes.shape(), "; reshape one of them");
  LOCKSTEP_CHECK(dtype == f32 || dtype == f16 || dtype == bf16,
                 "[matmul_fp8] expected the result's dtype f32, f16 or bf16, got ", dtype);
  if (bias.defined()) {
    check_same_device("matmul_fp8", a.codes, bias);
    LOCKSTEP_CHECK(bias.shape() == Shape{n} && bias.dtype() == dtype, "[matmul_fp8] expected a bias ", dtype, " ",
                   Shape{n}, ", got ", bias.dtype(), " ", bias.shape(), "; convert or reshape it");
  }
  const Device device = a.codes.device();
  Tensor out = empty({m, n}, {.dtype = dtype, .device = device});
  MacCounter::add(m * n * k);
  if (m > 0 && n > 0 && k > 0 &&
      kernels::matmul_fp8.as("matmul", device, a.codes, a.format, a.scale_inv, b.codes, b.format, b.scale_inv,
                             bias.defined() ? bias.contiguous() : bias, out))
    return out;
  const Tensor wide = dtype == f32 ? out : empty({m, n}, {.device = device});
  matmul_into(wide, read_fp8(a.codes, a.format, bf16), read_fp8(b.codes, b.format, bf16).t(), false);
  mul_(wide, mul(a.scale_inv.reshape({}), b.scale_inv.reshape({})));
  if (bias.defined()) add_(wide, bias.to(f32));
  return wide.to(dtype);
}

}  // namespace lockstep
