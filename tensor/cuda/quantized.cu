// Matrix products with quantized weights (tensor/quantized.h): a warp computes one output for a few rows of x. With few
// rows, bound by reading the codes from memory; many rows read the codes repeatedly, from the cache.
//
//   dynamic   rows of x are quantized first. Numbers of at least the threshold get code 0, and the same warp multiplies
//             them unquantized.
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/simt.h"
#include "tensor/cuda/warp.h"
#include "tensor/functors.h"
#include "tensor/quantized.h"

namespace lockstep::on_cuda {
namespace {

constexpr int warps_of_block = 4, rows_of_warp = 4;

/// A quantized matrix on the device.
struct CardCodes {
  const void *codes, *scales;
  int64_t out, in, groups;
  bool wide;  ///< true: group scales are f32; false: f16
};

/// The code of element k of row o, and its scale.
template <bool four> __device__ inline float code_at(const CardCodes& w, int64_t o, int64_t k) {
  if constexpr (four) {
    const int i = int(k % quant_group);
    const uint8_t two = static_cast<const uint8_t*>(w.codes)[(o * w.groups + k / quant_group) * 16 + i % 16];
    return float(int((two >> (i / 16 * 4)) & 15) - 8);
  } else {
    return float(static_cast<const int8_t*>(w.codes)[o * w.in + k]);
  }
}
template <bool by_row> __device__ inline float scale_at(const CardCodes& w, int64_t o, int64_t k) {
  const int64_t at = by_row ? o : o * w.groups + k / quant_group;
  if (by_row || w.wide) return static_cast<const float*>(w.scales)[at];
  return float(static_cast<const Half*>(w.scales)[at]);
}

/// Adds the bias and applies the activation.
__device__ inline float finished(float y, const float* bias, int64_t o, Activation activation) {
  if (bias) y += bias[o];
  constexpr functor::Params<float> none{};
  switch (activation) {
    case Activation::none: return y;
    case Activation::relu: return functor::Relu::value(y, none);
    case Activation::gelu_tanh: return functor::GeluTanh::value(y, none);
    case Activation::gelu_erf: return functor::GeluErf::value(y, none);
    case Activation::silu: return functor::Silu::value(y, none);
  }
  return y;
}

template <bool four, bool by_row>
__global__ void __launch_bounds__(warps_of_block* warp)
    quantized_kernel(const float* x, CardCodes w, const float* bias, Activation activation, int64_t rows, float* out) {
  const int lane = int(threadIdx.x);
  const int64_t o = int64_t(blockIdx.x) * warps_of_block + threadIdx.y;
  if (o >= w.out) return;
  for (int64_t r0 = int64_t(blockIdx.y) * rows_of_warp; r0 < rows; r0 += int64_t(gridDim.y) * rows_of_warp) {
    float sum[rows_of_warp] = {};
    for (int64_t k = lane; k < w.in; k += warp) {
      const float weight = code_at<four>(w, o, k) * scale_at<by_row>(w, o, k);
#pragma unroll
      for (int r = 0; r < rows_of_warp; ++r)
        if (r0 + r < rows) sum[r] += x[(r0 + r) * w.in + k] * weight;
    }
#pragma unroll
    for (int r = 0; r < rows_of_warp; ++r) {
      const float all = warp_sum(sum[r]);
      if (lane == 0 && r0 + r < rows) out[(r0 + r) * w.out + o] = finished(all, bias, o, activation);
    }
  }
}

/// kept[k] = 1 if any row of x has a number of at least `threshold` in column k.
__global__ void __launch_bounds__(256)
    kept_columns_kernel(const float* x, int64_t rows, int64_t in, float threshold, uint8_t* kept) {
  const int64_t k = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (k >= in) return;
  bool any = false;
  for (int64_t r = 0; r < rows; ++r) any |= fabsf(x[r * in + k]) >= threshold;
  kept[k] = any;
}

/// True if the number stays unquantized. `kept` is per column; if null, each number is compared with the threshold.
__device__ inline bool is_kept(float x, int64_t k, float threshold, const uint8_t* kept) {
  return kept ? kept[k] != 0 : threshold > 0 && fabsf(x) >= threshold;
}
/// Quantizes a row of x to int8, one warp per row. A row with a number that is not finite gets scale NaN.
__global__ void __launch_bounds__(warp)
    code_rows_kernel(const float* x, int64_t in, float threshold, const uint8_t* kept, int8_t* codes, float* scales) {
  const int64_t row = blockIdx.x;
  const float* const line = x + row * in;
  float most = 0, bad = 0;
  for (int64_t k = threadIdx.x; k < in; k += warp) {
    const float v = line[k];
    if (is_kept(v, k, threshold, kept)) continue;
    most = larger_of(fabsf(v), most);
    if (!(fabsf(v) <= 3.402823466e38f)) bad = 1;
  }
  most = warp_max(most), bad = warp_max(bad);
  const float scale = most > 0 ? most / 127 : 1;
  if (threadIdx.x == 0) scales[row] = bad > 0 ? nanf("") : scale;
  for (int64_t k = threadIdx.x; k < in; k += warp) {
    const float v = line[k];
    const bool zero = bad > 0 || is_kept(v, k, threshold, kept);
    codes[row * in + k] = zero ? int8_t(0) : int8_t(fminf(127.f, fmaxf(-127.f, rintf(v / scale))));
  }
}

__global__ void __launch_bounds__(warps_of_block* warp)
    quantized_dynamic_kernel(const float* x, const int8_t* codes, const float* x_scales, CardCodes w, float threshold,
                             const uint8_t* kept, const float* bias, Activation activation, int64_t rows, float* out) {
  const int lane = int(threadIdx.x);
  const int64_t o = int64_t(blockIdx.x) * warps_of_block + threadIdx.y;
  if (o >= w.out) return;
  const float scale = static_cast<const float*>(w.scales)[o];
  const int8_t* const line = static_cast<const int8_t*>(w.codes) + o * w.in;
  for (int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
    int sum = 0;
    float more = 0;
    for (int64_t k = lane; k < w.in; k += warp) {
      const int code = line[k];
      sum += code * int(codes[r * w.in + k]);
      if (threshold > 0) {
        const float v = x[r * w.in + k];
        if (is_kept(v, k, threshold, kept)) more += v * (float(code) * scale);
      }
    }
    sum = warp_sum(sum), more = warp_sum(more);
    if (lane == 0) out[r * w.out + o] = finished(fmaf(float(sum) * x_scales[r], scale, more), bias, o, activation);
  }
}

}  // namespace

void matmul_quantized(const Tensor& x, const Quantized& w, const Tensor& bias, const QuantMatmulArgs& args,
                      Tensor& out) {
  if (out.numel() == 0) return;
  const int64_t rows = x.size(0), in = w.in;
  const CardCodes codes{w.codes.raw_data(),     w.scales.raw_data(), w.out, in, (in + quant_group - 1) / quant_group,
                        w.scales.dtype() == f32};
  const float* const shift = bias.defined() ? bias.data<float>() : nullptr;
  const dim3 block(warp, warps_of_block);
  const auto grid = [&](int64_t rows_each) {
    return dim3(cuda::blocks_of("matmul_quantized", (w.out + warps_of_block - 1) / warps_of_block),
                unsigned(std::min<int64_t>(65535, (rows + rows_each - 1) / rows_each)));
  };
  if (args.dynamic) {
    const Tensor x_codes = empty({rows, in}, {.dtype = i8, .device = x.device()}),
                 x_scales = empty({rows}, {.device = x.device()});
    Tensor kept;
    if (args.whole_columns && args.threshold > 0) {
      kept = empty({in}, {.dtype = u8, .device = x.device()});
      cuda::launch({"matmul_quantized", dim3(unsigned((in + 255) / 256)), dim3(256)}, kept_columns_kernel,
                   x.data<float>(), rows, in, float(args.threshold), kept.data<uint8_t>());
    }
    const uint8_t* const columns = kept.defined() ? kept.data<uint8_t>() : nullptr;
    cuda::launch({"matmul_quantized", dim3(cuda::blocks_of("matmul_quantized", rows)), dim3(warp)}, code_rows_kernel,
                 x.data<float>(), in, float(args.threshold), columns, x_codes.data<int8_t>(), x_scales.data<float>());
    return cuda::launch({"matmul_quantized", grid(1), block}, quantized_dynamic_kernel, x.data<float>(),
                        x_codes.data<int8_t>(), x_scales.data<float>(), codes, float(args.threshold), columns, shift,
                        args.activation, rows, out.data<float>());
  }
  const auto run = [&]<bool four, bool by_row> {
    cuda::launch({"matmul_quantized", grid(rows_of_warp), block}, quantized_kernel<four, by_row>, x.data<float>(),
                 codes, shift, args.activation, rows, out.data<float>());
  };
  if (w.format == QuantFormat::row8) run.template operator()<false, true>();
  else if (w.format == QuantFormat::group8) run.template operator()<false, false>();
  else run.template operator()<true, false>();
}

}  // namespace lockstep::on_cuda
