// Quantized weights: checks, encoding, and the handles that stand for them. See codes.h.
#include "extensions/quantization/codes.h"

#include <algorithm>

#include "extensions/quantization/cpu/quantized.h"
#include "extensions/quantization/kernels.h"
#include "tensor/batch_invariant.h"
#include "tensor/flops.h"
#include "tensor/memory.h"
#include "tensor/ops_common.h"
#include "tensor/stored_matrix.h"

namespace lockstep {

namespace kernels {
constinit const Op<MatmulQuantized> matmul_quantized{"matmul_quantized", on_cpu::matmul_quantized,
                                                     LOCKSTEP_ON_CUDA(on_cuda::matmul_quantized)};
constinit const Op<ReadQuantized> read_quantized{"read_quantized", on_cpu::read_quantized,
                                                 LOCKSTEP_ON_CUDA(on_cuda::read_quantized)};
}  // namespace kernels

namespace {

constexpr int64_t max_coded_rows = 32;  // rows that a device multiplies by codes; for more rows, it decodes the weight
constexpr int64_t max_inputs = 133000;  // sums of this many products up to 127 * 127 fit 32 bits

int64_t groups_of(int64_t in) { return (in + quant_group - 1) / quant_group; }

void check_codes(const char* op, const Quantized& w) {
  check_defined(op, w.codes);
  check_defined(op, w.scales);
  const bool by_row = w.format == QuantFormat::row8, four = w.format == QuantFormat::group4;
  const int64_t groups = groups_of(w.in);
  const Shape codes{w.out, four ? groups * 16 : w.in}, scales = by_row ? Shape{w.out} : Shape{w.out, groups};
  LOCKSTEP_CHECK(w.out > 0 && w.in > 0, "[", op, "] expected a weight (out, in) with sizes > 0, got ", w.out, " and ",
                 w.in);
  LOCKSTEP_CHECK(w.codes.dtype() == (four ? u8 : i8) && w.codes.shape() == codes && w.codes.is_contiguous(), "[", op,
                 "] expected contiguous ", name_of(w.format), " codes of dtype ", four ? u8 : i8, " and shape ", codes,
                 ", got ", w.codes.dtype(), " and ", w.codes.shape(), "; quantize() makes them");
  LOCKSTEP_CHECK((w.scales.dtype() == f32 || (w.scales.dtype() == f16 && !by_row)) && w.scales.shape() == scales &&
                     w.scales.is_contiguous(),
                 "[", op, "] expected contiguous ", name_of(w.format), " scales of dtype ",
                 by_row ? "f32" : "f16 or f32", " and shape ", scales, ", got ", w.scales.dtype(), " and ",
                 w.scales.shape(), "; quantize() makes them");
  check_same_device(op, w.codes, w.scales);
}

/// linear() without checks, by ordinary products with the decoded weight. Decodes one part of the weight at a time, so
/// that a decoded part needs little memory and is still in the device's cache when it is multiplied.
void multiply_decoded(const Tensor& x, const Quantized& w, const Tensor& bias, Activation activation, Tensor& out) {
  constexpr int64_t max_bytes = int64_t(64) << 20, unit = 64;  // outputs of a part: a multiple of the unit
  const int64_t full = max_bytes / (w.in * size_of(x.dtype())) / unit * unit;
  for (int64_t o = 0, n; o < w.out; o += n) {
    n = std::min(w.out - o, std::max(full, unit));
    const Quantized part{w.format, w.codes.narrow(0, o, n), w.scales.narrow(0, o, n), n, w.in};
    const Tensor weight = dequantize(part, x.dtype()), shift = bias.defined() ? bias.narrow(0, o, n) : bias;
    if (n == w.out) return linear_into(out, x, weight, shift, activation, {});
    out.narrow(1, o, n).copy_(linear(x, weight, shift, activation));
  }
}

/// The weight that a handle stands for, and the options of its products.
struct QuantizedHandle : StoredMatrix {
  QuantizedHandle(Quantized weight, const QuantMatmulArgs& args) : weight(std::move(weight)), args(args) {}
  Shape shape() const override { return {weight.out, weight.in}; }
  Device device() const override { return weight.codes.device(); }
  Tensor numbers(DType dtype) const override { return dequantize(weight, dtype); }
  Tensor linear(const Tensor& x, const Tensor& bias, Activation activation) const override {
    QuantMatmulArgs with = args;
    with.activation = activation;
    return lockstep::linear(x, weight, bias, with);
  }
  Quantized weight;
  QuantMatmulArgs args;
};

}  // namespace

std::string_view name_of(QuantFormat format) {
  constexpr std::string_view names[] = {"row8", "group8", "group4"};
  return names[int(format)];
}

Quantized quantize(const Tensor& w, QuantFormat format) {
  check_floating("quantize", w);
  LOCKSTEP_CHECK(w.dim() == 2 && w.numel() > 0, "[quantize] expected a weight (out, in) with sizes > 0, got ",
                 w.shape(), "; reshape it");
  const int64_t out = w.size(0), in = w.size(1), groups = groups_of(in);
  const bool by_row = format == QuantFormat::row8, four = format == QuantFormat::group4;
  const Tensor from = w.to(cpu).to(f32).contiguous();
  Quantized q{.format = format, .out = out, .in = in};
  q.codes = empty({out, four ? groups * 16 : in}, {.dtype = four ? u8 : i8, .device = cpu});
  q.scales = empty(by_row ? Shape{out} : Shape{out, groups}, {.device = cpu});
  LOCKSTEP_CHECK(on_cpu::make_codes(from, q), "[quantize] expected finite weights",
                 four ? " below 2.9e38, so that codes times scales stay finite" : "",
                 "; at least one weight is not: look for NaN and infinity");
  const Tensor short_scales = by_row ? q.scales : q.scales.to(f16);
  if (equal(short_scales.to(f32), q.scales)) q.scales = short_scales;
  q.codes = q.codes.to(w.device()), q.scales = q.scales.to(w.device());
  return q;
}

Tensor dequantize(const Quantized& w, DType dtype) {
  check_codes("dequantize", w);
  Tensor out = empty({w.out, w.in}, {.dtype = dtype == f16 || dtype == bf16 ? dtype : f32, .device = w.codes.device()});
  kernels::read_quantized(w.codes.device(), w.codes, w.scales, w.format, out);
  return out.to(dtype);
}

Tensor linear(const Tensor& x, const Quantized& w, const Tensor& bias, const QuantMatmulArgs& args) {
  check_floating("linear", x);
  check_codes("linear", w);
  check_same_device("linear", x, w.codes);
  LOCKSTEP_CHECK(x.dim() >= 1 && x.size(-1) == w.in, "[linear] expected an input (..., ", w.in,
                 ") for a quantised weight (", w.out, ", ", w.in, "), got ", x.shape(), "; reshape the input");
  if (bias.defined()) {
    check_same_dtype("linear", bias, x);
    check_same_device("linear", bias, x);
    LOCKSTEP_CHECK(bias.shape() == Shape{w.out}, "[linear] expected a bias ", Shape{w.out}, ", got ", bias.shape());
  }
  LOCKSTEP_CHECK(!args.dynamic || (w.format == QuantFormat::row8 && w.in <= max_inputs),
                 "[linear] quantised activations (dynamic) need a row8 weight of at most ", max_inputs, " inputs, got ",
                 name_of(w.format), " of ", w.in, "; quantise it by row8, or leave dynamic out");
  LOCKSTEP_CHECK(args.threshold >= 0 && (args.dynamic || args.threshold == 0),
                 "[linear] expected a threshold >= 0, and 0 unless dynamic is set, got ", args.threshold);
  Shape shape = x.shape();
  shape[x.dim() - 1] = w.out;
  const int64_t rows = x.numel() / w.in;
  const DType computed = x.dtype() == f64 ? f32 : x.dtype();
  const Tensor from = x.reshape({rows, w.in}).to(computed).contiguous(),
               shift = bias.defined() ? bias.to(computed).contiguous() : bias;
  Tensor out = empty({rows, w.out}, {.dtype = computed, .device = x.device()});
  if (!x.device().is_cpu() && !args.dynamic && rows > max_coded_rows && !BatchInvariant::is_on()) {
    multiply_decoded(from, w, shift, args.activation, out);
  } else {
    MacCounter::add(out.numel() * w.in);
    kernels::matmul_quantized(x.device(), from, w.codes, w.scales, w.format, shift, args, out);
  }
  return out.to(x.dtype()).view(shape);
}

Tensor handle_of(const Quantized& weight, const QuantMatmulArgs& matmul_args, DType dtype) {
  check_codes("handle_of", weight);
  return stand_in(std::make_shared<QuantizedHandle>(weight, matmul_args), dtype);
}

}  // namespace lockstep
