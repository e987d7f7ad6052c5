// Matrix products with quantized weights (codes.h) for few rows of x. They take as long as reading the codes
// from memory. For many rows, linear() decodes the weight with decode_kernel and uses the ordinary product.
//
//   a warp        computes a few outputs for a few rows. Lane l reads the 16-byte words l, l + 32, ... of the codes of
//                 an output
//   a code        is read once for all rows of the warp and converted to a number in a register
//   dynamic       rows of x are quantized first, and codes are multiplied by codes. Numbers whose magnitude reaches
//                 the threshold get code 0, and the same warp multiplies them unquantized
//
// The order of a sum depends on the number of inputs alone.
#include "extensions/quantization/activations.h"
#include "extensions/quantization/kernels.h"
#include "tensor/cuda/simt.h"
#include "tensor/cuda/warp.h"

namespace lockstep::on_cuda {
namespace {

constexpr int warps_of_block = 4, threads = 256;
constexpr int columns_of_mask = 32;

/// A quantized matrix on the device.
struct CardCodes : CodedMatrix {
  explicit CardCodes(const Quantized& w) : CodedMatrix(w), aligned(is_aligned(codes, 16) && row_bytes % 16 == 0) {}
  bool aligned;  ///< rows of codes begin at multiples of 16 bytes
};

/// A matrix whose rows have n numbers each and, if `aligned`, begin at multiples of 16 bytes.
template <class T> struct Rows {
  const T* data;
  int64_t n;
  bool aligned;

  explicit Rows(const Tensor& x)
      : data(x.data<T>()), n(x.size(1)), aligned(is_aligned(data, int(16 / sizeof(T))) && n * sizeof(T) % 16 == 0) {}
  /// Reads numbers k .. k + 3 of row r. Numbers past the end of the row are 0.
  __device__ void read(int64_t r, int64_t k, float* to) const {
    const T* const from = data + r * n + k;
    if (aligned && k < n) return load_values<4>(from, to);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = k + i < n ? float(from[i]) : 0;
  }
};

/// 16 bytes of codes.
struct alignas(16) Codes {
  uint32_t words[4];
};
/// The number of codes in 16 bytes.
template <bool four> inline constexpr int codes_at_once = four ? 32 : 16;

/// Reads 16 bytes of codes of row o, starting with the code of number k. Bytes past the end of the row are 0.
template <bool four> __device__ inline Codes codes_at(const CardCodes& w, int64_t o, int64_t k) {
  const int64_t first = four ? k / 2 : k;
  const uint8_t* const from = w.codes + o * w.row_bytes + first;
  if (w.aligned) return *reinterpret_cast<const Codes*>(from);
  Codes all{};
#pragma unroll
  for (int i = 0; i < 16; ++i)
    if (first + i < w.row_bytes) all.words[i / 4] |= uint32_t(from[i]) << (i % 4 * 8);
  return all;
}
/// The code in byte i of a word, as a float. With `four`, a byte holds two codes, and `high` selects the upper one. For
/// a small integer n, 0x4b000000 | n are the bits of the float 2^23 + n. This is cheaper than a conversion.
template <bool four> __device__ inline float number_of(uint32_t word, int i, bool high) {
  const uint32_t biased = four ? word >> (i * 8 + (high ? 4 : 0)) & 15 : (word >> (i * 8) & 255) ^ 128;
  return __uint_as_float(0x4b000000u | biased) - (8388608.f + (four ? 8 : 128));
}

/// Adds the bias and applies the activation.
template <class T> __device__ inline float finished(float y, const T* bias, int64_t o, Activation activation) {
  return activate(bias ? y + float(bias[o]) : y, activation);
}

/// Writes `outs` outputs of each of `max_rows` rows: lane i writes output o0 + i / max_rows of row r0 + i % max_rows.
template <int outs, int max_rows, class T>
__device__ inline void write(float mine, int64_t o0, int64_t r0, const CardCodes& w, const T* bias,
                             Activation activation, int64_t rows, T* out) {
  const int lane = int(threadIdx.x);
  const int64_t o = o0 + lane / max_rows, r = r0 + lane % max_rows;
  if (lane < outs * max_rows && o < w.out && r < rows) out[r * w.out + o] = T(finished(mine, bias, o, activation));
}

/// out = activation(x w^T + bias): a warp computes `outs` outputs for up to `max_rows` rows.
template <bool four, int outs, int max_rows, class T>
__global__ void __launch_bounds__(warps_of_block* warp)
    quantized_kernel(Rows<T> x, CardCodes w, const T* bias, Activation activation, int64_t rows, T* out) {
  constexpr int step = codes_at_once<four>;
  const int lane = int(threadIdx.x);
  const int64_t o0 = (int64_t(blockIdx.x) * warps_of_block + threadIdx.y) * outs;
  if (o0 >= w.out) return;
  for (int64_t r0 = int64_t(blockIdx.y) * max_rows; r0 < rows; r0 += int64_t(gridDim.y) * max_rows) {
    float sums[outs][max_rows] = {};
#pragma unroll(max_rows == 1 ? 4 : 1)
    for (int64_t k = int64_t(lane) * step; k < w.in; k += warp * step) {
      Codes codes[outs];
      float scales[outs];
#pragma unroll
      for (int o = 0; o < outs; ++o) {
        const int64_t row = ::min(o0 + o, w.out - 1);
        codes[o] = codes_at<four>(w, row, k);
        scales[o] = w.scale(row, k);
      }
#pragma unroll
      for (int part = 0; part < step / 4; ++part) {  // four numbers; the high halves of bytes (4-bit codes) come last
        float weights[outs][4];
#pragma unroll
        for (int o = 0; o < outs; ++o)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            weights[o][i] = number_of<four>(codes[o].words[part % 4], i, part >= 4) * scales[o];
#pragma unroll
        for (int r = 0; r < max_rows; ++r) {
          if (r0 + r >= rows) continue;
          float numbers[4];
          x.read(r0 + r, k + part * 4, numbers);
#pragma unroll
          for (int o = 0; o < outs; ++o)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[o][r] = fmaf(numbers[i], weights[o][i], sums[o][r]);
        }
      }
    }
    float mine = 0;
#pragma unroll
    for (int i = 0; i < outs * max_rows; ++i) {
      const float all = warp_sum(sums[i / max_rows][i % max_rows]);
      if (lane == i) mine = all;
    }
    write<outs, max_rows>(mine, o0, r0, w, bias, activation, rows, out);
  }
}

/// Decodes the matrix, 16 bytes of codes at once.
template <bool four, class T>
__global__ void __launch_bounds__(threads) decode_kernel(CardCodes w, int64_t pieces_of_row, bool aligned, T* out) {
  constexpr int step = codes_at_once<four>;
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < w.out * pieces_of_row;
       i += int64_t(gridDim.x) * threads) {
    const int64_t o = i / pieces_of_row, k = i % pieces_of_row * step;
    const Codes codes = codes_at<four>(w, o, k);
    const float scale = w.scale(o, k);
#pragma unroll
    for (int part = 0; part < step / 4; ++part) {
      const int64_t first = k + part * 4;
      float numbers[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) numbers[j] = number_of<four>(codes.words[part % 4], j, part >= 4) * scale;
      T* const to = out + o * w.in + first;
      if (aligned && first < w.in) {
        store_values<4>(to, numbers);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (first + j < w.in) to[j] = T(numbers[j]);
    }
  }
}

// --- dynamic ---

/// kept[k] = 1 if any number in column k of x has a magnitude of at least `threshold`, else 0.
template <class T>
__global__ void __launch_bounds__(threads)
    kept_columns_kernel(const T* x, int64_t rows, int64_t in, float threshold, uint8_t* kept) {
  const int64_t k = int64_t(blockIdx.x) * threads + threadIdx.x;
  if (k >= in) return;
  bool any = false;
  for (int64_t r = 0; r < rows; ++r) any |= fabsf(float(x[r * in + k])) >= threshold;
  kept[k] = any;
}

/// True if the number stays unquantized. `kept` is per column; if null, each number is compared with the threshold.
__device__ inline bool is_kept(float x, int64_t k, float threshold, const uint8_t* kept) {
  return kept ? kept[k] != 0 : threshold > 0 && fabsf(x) >= threshold;
}
/// The quantized rows of x. Each has `width` codes (0 past the row's end), a scale, and for every 32 columns a mask of
/// the numbers that stay unquantized.
struct CodedRows {
  int8_t* codes;
  float* scales;
  uint32_t* masks;
  int64_t width;
};
/// Quantizes a row of x to int8, one block per row. A row with a number that is not finite gets scale NaN.
template <class T>
__global__ void __launch_bounds__(threads)
    code_rows_kernel(const T* x, int64_t in, float threshold, const uint8_t* kept, CodedRows to) {
  const int64_t row = blockIdx.x;
  const T* const line = x + row * in;
  float max_abs = 0, bad = 0;
  for (int64_t k = threadIdx.x; k < in; k += threads) {
    const float v = float(line[k]);
    if (is_kept(v, k, threshold, kept)) continue;
    max_abs = larger_of(fabsf(v), max_abs);
    if (!(fabsf(v) <= 3.402823466e38f)) bad = 1;
  }
  max_abs = group_max<threads>(max_abs), bad = group_max<threads>(bad);
  const float scale = max_abs > 0 ? max_abs / 127 : 1;
  if (threadIdx.x == 0) to.scales[row] = bad > 0 ? nanf("") : scale;
  for (int64_t k = threadIdx.x; k < to.width; k += threads) {  // width is a multiple of a warp
    const float v = k < in ? float(line[k]) : 0;
    const bool stays = k < in && is_kept(v, k, threshold, kept);
    const unsigned mask = __ballot_sync(full_warp, stays);
    if (threadIdx.x % warp == 0) to.masks[row * (to.width / columns_of_mask) + k / columns_of_mask] = mask;
    const bool zero = bad > 0 || stays;
    to.codes[row * to.width + k] = zero ? int8_t(0) : int8_t(fminf(127.f, fmaxf(-127.f, rintf(v / scale))));
  }
}

/// Returns sum + a0 b0 + a1 b1 + a2 b2 + a3 b3, where a0 .. a3 and b0 .. b3 are the signed bytes of a and of b.
__device__ inline int dot4(uint32_t a, uint32_t b, int sum) {
#if defined(__CUDA_ARCH__)
  return __dp4a(int(a), int(b), sum);
#else
  for (int i = 0; i < 4; ++i) sum += int(int8_t(a >> i * 8)) * int(int8_t(b >> i * 8));
  return sum;
#endif
}

/// Multiplies quantized rows of x by the quantized weight: a warp computes `outs` outputs for up to `max_rows` rows.
template <int outs, int max_rows, class T>
__global__ void __launch_bounds__(warps_of_block* warp, max_rows == 1 ? 8 : 3)
    quantized_dynamic_kernel(const T* x, CodedRows coded, bool keeps, CardCodes w, const T* bias, Activation activation,
                             int64_t rows, T* out) {
  constexpr int step = codes_at_once<false>;
  const int lane = int(threadIdx.x);
  const int64_t o0 = (int64_t(blockIdx.x) * warps_of_block + threadIdx.y) * outs;
  if (o0 >= w.out) return;
  const float* const w_scales = static_cast<const float*>(w.scales);
  for (int64_t r0 = int64_t(blockIdx.y) * max_rows; r0 < rows; r0 += int64_t(gridDim.y) * max_rows) {
    int sums[outs][max_rows] = {};
    float more[outs][max_rows] = {};  // sums for the numbers that stay unquantized
    for (int64_t k = int64_t(lane) * step; k < w.in; k += warp * step) {
      Codes codes[outs];
#pragma unroll
      for (int o = 0; o < outs; ++o) codes[o] = codes_at<false>(w, ::min(o0 + o, w.out - 1), k);
#pragma unroll
      for (int r = 0; r < max_rows; ++r) {
        const int64_t row = r0 + r;
        if (row >= rows) continue;
        const Codes of_x = *reinterpret_cast<const Codes*>(coded.codes + row * coded.width + k);
#pragma unroll
        for (int o = 0; o < outs; ++o)
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[o][r] = dot4(codes[o].words[i], of_x.words[i], sums[o][r]);
        if (!keeps) continue;
        unsigned mask = coded.masks[(row * coded.width + k) / columns_of_mask] >> (k % columns_of_mask) & 0xffffu;
        for (; mask != 0; mask &= mask - 1) {
          const int64_t column = k + __ffs(int(mask)) - 1;
          const float number = float(x[row * w.in + column]);
#pragma unroll
          for (int o = 0; o < outs; ++o) {
            const int64_t output = ::min(o0 + o, w.out - 1);
            const float code = float(reinterpret_cast<const int8_t*>(w.codes)[output * w.in + column]);
            more[o][r] += number * (code * w_scales[output]);
          }
        }
      }
    }
    float mine = 0;
#pragma unroll
    for (int i = 0; i < outs * max_rows; ++i) {
      const int64_t output = ::min(o0 + i / max_rows, w.out - 1), row = ::min(r0 + i % max_rows, rows - 1);
      const int all = warp_sum(sums[i / max_rows][i % max_rows]);
      const float kept = keeps ? warp_sum(more[i / max_rows][i % max_rows]) : 0;
      if (lane == i) mine = fmaf(float(all) * coded.scales[row], w_scales[output], kept);
    }
    write<outs, max_rows>(mine, o0, r0, w, bias, activation, rows, out);
  }
}

/// Calls fn.template operator()<outs, most>() with how many outputs and rows a warp computes, which depends on `rows`.
template <class Fn> void with_rows(int64_t rows, Fn&& fn) {
  if (rows == 1) fn.template operator()<2, 1>();
  else if (rows <= 4) fn.template operator()<4, 4>();
  else fn.template operator()<4, 8>();
}
dim3 grid_of(const Quantized& w, int64_t rows, int outs, int max_rows) {
  return dim3(cuda::blocks_of("matmul_quantized", (w.out + warps_of_block * outs - 1) / (warps_of_block * outs)),
              unsigned(std::min<int64_t>(65535, (rows + max_rows - 1) / max_rows)));
}

template <class T>
void dynamic(const Tensor& x, const Quantized& w, const Tensor& bias, const QuantMatmulArgs& args, Tensor& out) {
  const int64_t rows = x.size(0), in = w.in, masks = (in + columns_of_mask - 1) / columns_of_mask;
  const float threshold = float(args.threshold);
  const cuda::Scratch codes(size_t(rows * masks * columns_of_mask)), scales(size_t(rows) * sizeof(float)),
      kept_masks(size_t(rows * masks) * sizeof(uint32_t)), kept(args.full_columns && threshold > 0 ? size_t(in) : 0);
  const CodedRows coded{codes.as<int8_t>(), scales.as<float>(), kept_masks.as<uint32_t>(), masks * columns_of_mask};
  uint8_t* const columns = kept.as<uint8_t>();
  if (columns)
    cuda::launch({"matmul_quantized", dim3(unsigned((in + threads - 1) / threads)), dim3(threads)},
                 kept_columns_kernel<T>, x.data<T>(), rows, in, threshold, columns);
  cuda::launch({"matmul_quantized", dim3(cuda::blocks_of("matmul_quantized", rows)), dim3(threads)},
               code_rows_kernel<T>, x.data<T>(), in, threshold, columns, coded);
  with_rows(rows, [&]<int outs, int max_rows> {
    cuda::launch({"matmul_quantized", grid_of(w, rows, outs, max_rows), dim3(warp, warps_of_block)},
                 quantized_dynamic_kernel<outs, max_rows, T>, x.data<T>(), coded, threshold > 0, CardCodes(w),
                 data_or_null<T>(bias), args.activation, rows, out.data<T>());
  });
}

}  // namespace

void matmul_quantized(const Tensor& x, const Tensor& codes, const Tensor& scales, QuantFormat format,
                      const Tensor& bias, const QuantMatmulArgs& args, Tensor& out) {
  if (out.numel() == 0) return;
  const Quantized w{format, codes, scales, out.size(1), x.size(1)};
  const int64_t rows = x.size(0);
  dispatch<float, Half, BFloat16>(x.dtype(), "matmul_quantized", [&]<class T> {
    if (args.dynamic) return dynamic<T>(x, w, bias, args, out);
    with_rows(rows, [&]<int outs, int max_rows> {
      const auto run = [&]<bool four> {
        cuda::launch({"matmul_quantized", grid_of(w, rows, outs, max_rows), dim3(warp, warps_of_block)},
                     quantized_kernel<four, outs, max_rows, T>, Rows<T>(x), CardCodes(w), data_or_null<T>(bias),
                     args.activation, rows, out.data<T>());
      };
      if (w.format == QuantFormat::group4) run.template operator()<true>();
      else run.template operator()<false>();
    });
  });
}

void read_quantized(const Tensor& codes, const Tensor& scales, QuantFormat format, Tensor& out) {
  const Quantized w{format, codes, scales, out.size(0), out.size(1)};
  dispatch<float, Half, BFloat16>(out.dtype(), "read_quantized", [&]<class T> {
    const bool aligned = is_aligned(out.data<T>(), 4) && w.in % 4 == 0;
    const auto run = [&]<bool four> {
      const int64_t pieces = (w.in + codes_at_once<four> - 1) / codes_at_once<four>;
      cuda::launch({"read_quantized", dim3(cuda::blocks_for(w.out * pieces, threads)), dim3(threads)},
                   decode_kernel<four, T>, CardCodes(w), pieces, aligned, out.data<T>());
    };
    if (w.format == QuantFormat::group4) run.template operator()<true>();
    else run.template operator()<false>();
  });
}

}  // namespace lockstep::on_cuda
