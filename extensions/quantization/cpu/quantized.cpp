// Products with quantized weights: out = activation(x w^T + bias).
//
//   few rows of x     quantized weights (codes) are converted to f32 in registers while they are read from memory
//   more rows         the weights of 32 outputs are converted to f32 in a buffer that stays in L2, then multiplied by
//                     all rows
//   dynamic           rows of x are quantized too, and the products are summed exactly, in integers
//
// The bits of a row do not depend on how many other rows there are: all ways sum in the order of quantized_kernels.inc.
#include "extensions/quantization/cpu/quantized.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "base/suggest.h"
#include "extensions/quantization/activations.h"
#include "extensions/quantization/cpu/quantized_kernels.h"
#include "tensor/cpu/parallel.h"
#include "tensor/storage.h"

namespace lockstep::on_cpu {
namespace {

constexpr int64_t fork_codes = 1 << 16;  // codes that justify a thread

std::vector<const QuantizedKernels*> all_kernels() {
  std::vector<const QuantizedKernels*> all;
  for (const QuantizedKernels* k : {
#if defined(__x86_64__)
         &avx512::kernels, &avx2::kernels,
#endif
             &portable::kernels
       })
    if (k->works()) all.push_back(k);
  return all;
}

std::atomic<const QuantizedKernels*>& chosen() {
  static std::atomic<const QuantizedKernels*> kernels{all_kernels()[0]};
  return kernels;
}

/// Adds the bias to a matrix of `rows` x n values at `at`, whose rows are ld apart, and applies the activation.
template <Activation activation> void map_rows(float* at, int64_t rows, int64_t n, int64_t ld, const float* bias) {
  for (int64_t r = 0; r < rows; ++r, at += ld)
    for (int64_t j = 0; j < n; ++j) at[j] = activate(bias ? at[j] + bias[j] : at[j], activation);
}

void finish(Activation activation, float* at, int64_t rows, int64_t n, int64_t ld, const float* bias) {
  switch (activation) {
    case Activation::none: return bias ? map_rows<Activation::none>(at, rows, n, ld, bias) : void();
    case Activation::relu: return map_rows<Activation::relu>(at, rows, n, ld, bias);
    case Activation::gelu_tanh: return map_rows<Activation::gelu_tanh>(at, rows, n, ld, bias);
    case Activation::gelu_erf: return map_rows<Activation::gelu_erf>(at, rows, n, ld, bias);
    case Activation::silu: return map_rows<Activation::silu>(at, rows, n, ld, bias);
  }
}

/// Returns x with each row padded with zeros to `width` numbers.
Tensor padded(const Tensor& x, int64_t width) {
  if (x.size(1) == width) return x;
  Tensor wide = zeros({x.size(0), width}, {.device = cpu});
  wide.narrow(1, 0, x.size(1)).copy_(x);
  return wide;
}

/// Divides the outputs among threads: calls fn(o0, o1, scratch) for ranges [o0, o1) that begin at multiples of `unit`.
template <class Fn> void each_part(int64_t out, int64_t unit, int64_t work_of_one, int64_t scratch, const Fn& fn) {
  const int64_t units = ceil_div(out, unit), grain = std::max<int64_t>(1, fork_codes / (unit * work_of_one)),
                parts = std::min<int64_t>(get_threads(), units);
  const Ref<Storage> storage = Storage::allocate(parts * scratch * int64_t(sizeof(float)), cpu);
  std::atomic<int64_t> slot{0};
  parallel_for(units, grain, [&](int64_t first, int64_t last) {
    float* const own = reinterpret_cast<float*>(storage->data()) + slot++ * scratch;
    fn(first * unit, std::min(out, last * unit), own);
  });
}

void floating(const Tensor& rows_in, const Quantized& w, const float* bias, Activation activation, Tensor& out) {
  const CodedMatrix matrix(w);
  const QuantizedKernels& kernels = *chosen().load(std::memory_order_relaxed);
  const Tensor x = padded(rows_in, matrix.groups * quant_group);
  const int64_t rows = x.size(0);
  const float* const from = x.data<float>();
  float* const to = out.data<float>();
  const auto end = [&](int64_t o0, int64_t o1) {
    finish(activation, to + o0, rows, o1 - o0, w.out, bias ? bias + o0 : nullptr);
  };
  if (rows <= max_rows)
    return each_part(w.out, max_columns, w.in, (max_columns + 1) * matrix.groups,
                     [&](int64_t o0, int64_t o1, float* own) {
                       kernels.few(matrix, o0, o1, from, rows, to, w.out, own);
                       end(o0, o1);
                     });
  each_part(w.out, panel_columns, w.in, many_scratch(matrix), [&](int64_t o0, int64_t o1, float* own) {
    for (int64_t o = o0; o < o1; o += panel_columns) {
      const int64_t next = std::min(o1, o + panel_columns);
      kernels.many(matrix, o, next, from, rows, to, w.out, own);
      end(o, next);
    }
  });
}

/// The largest magnitude of n numbers, which ignores NaN, and whether all are finite.
struct Magnitude {
  float max_abs = 0;
  bool finite = true;
};
Magnitude magnitude_of(const float* x, int64_t n) {
  Magnitude found;
  for (int64_t j = 0; j < n; ++j) {
    const float a = std::abs(x[j]);
    found.max_abs = a > found.max_abs ? a : found.max_abs;
    found.finite &= a <= std::numeric_limits<float>::max();
  }
  return found;
}
/// The code that is nearest to x / scale.
int32_t code_of(float x, float scale, float max_code) {
  return int32_t(std::min(max_code, std::max(-max_code, std::nearbyint(x / scale))));
}

void sort_unique(std::vector<int64_t>& all) {
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
}

/// Quantizes one row of x, except the columns listed in `kept`; the codes are 0 before.
void code_row(const float* x, int64_t in, const std::vector<int64_t>& kept, int8_t* codes, float* scale) {
  std::vector<float> quantized;  // x, with zeros in the columns that are not quantized
  if (!kept.empty()) {
    quantized.assign(x, x + in);
    for (const int64_t column : kept) quantized[size_t(column)] = 0;
    x = quantized.data();
  }
  const auto [max_abs, finite] = magnitude_of(x, in);
  const float s = max_abs > 0 ? max_abs / 127 : 1;
  *scale = finite ? s : std::numeric_limits<float>::quiet_NaN();  // then the result is not finite either
  if (!finite) return;
  for (int64_t j = 0; j < in; ++j) codes[j] = int8_t(code_of(x[j], s, 127));
}

void dynamic(const Tensor& x, const Quantized& w, const float* bias, const QuantMatmulArgs& args, Tensor& out) {
  const CodedMatrix matrix(w);
  const QuantizedKernels& kernels = *chosen().load(std::memory_order_relaxed);
  const CodedRows coded = code_rows(x, args);
  const int64_t rows = x.size(0), x_row = coded.codes.size(1);
  std::vector<int64_t> columns;  // columns that at least one row keeps unquantized
  for (const auto& kept : coded.kept) columns.insert(columns.end(), kept.begin(), kept.end());
  sort_unique(columns);
  const int8_t* const codes = coded.codes.data<int8_t>();
  const float *const x_scales = coded.scales.data<float>(), *const from = x.data<float>(),
                     *const scales = w.scales.data<float>();
  float* const to = out.data<float>();
  constexpr int64_t wide = panel_columns;
  const int64_t kept_size = int64_t(columns.size()) * wide;
  each_part(w.out, wide, w.in, rows * wide + kept_size, [&](int64_t o0, int64_t o1, float* own) {
    int32_t* const sums = reinterpret_cast<int32_t*>(own);
    float* const weights = own + rows * wide;  // decoded weights of `columns`
    for (int64_t o = o0; o < o1; o += wide) {
      const int64_t n = std::min(wide, o1 - o);
      kernels.dots(matrix, o, o + n, codes, x_row, rows, sums, wide);
      for (size_t k = 0; k < columns.size(); ++k)
        for (int64_t c = 0; c < n; ++c)
          weights[int64_t(k) * wide + c] = float(int8_t(matrix.row(o + c)[columns[k]])) * scales[o + c];
      for (int64_t r = 0; r < rows; ++r) {
        float more[wide] = {};
        size_t k = 0;
        if (!coded.kept.empty())
          for (const int64_t column : coded.kept[size_t(r)]) {
            while (columns[k] != column) ++k;
            const float one = from[r * w.in + column];
            const float* const line = weights + int64_t(k) * wide;
            for (int64_t c = 0; c < n; ++c) more[c] = std::fma(one, line[c], more[c]);
          }
        for (int64_t c = 0; c < n; ++c)
          to[r * w.out + o + c] = std::fma(float(sums[r * wide + c]) * x_scales[r], scales[o + c], more[c]);
      }
      finish(args.activation, to + o, rows, n, w.out, bias ? bias + o : nullptr);
    }
  });
}

}  // namespace

std::vector<std::string> quantized_paths() {
  std::vector<std::string> names;
  for (const QuantizedKernels* k : all_kernels()) names.emplace_back(k->name);
  return names;
}

void use_quantized_path(const std::string& name) {
  for (const QuantizedKernels* k : all_kernels())
    if (name == k->name) return chosen().store(k);
  fail(str("[quantized] expected kernels that this processor can run, got '", name, "'; quantized_paths() lists them",
           suggestion(name, quantized_paths())));
}

bool make_codes(const Tensor& w, Quantized& to) {
  const bool by_row = to.format == QuantFormat::row8, four = to.format == QuantFormat::group4;
  const int64_t groups = by_row ? 1 : ceil_div(to.in, quant_group), size = by_row ? to.in : quant_group;
  const float* const from = w.data<float>();
  uint8_t* const codes = static_cast<uint8_t*>(to.codes.raw_data());
  const float max_code = four ? 7 : 127;
  std::atomic<bool> finite{true};
  parallel_for(to.out, std::max<int64_t>(1, fork_codes / to.in), [&](int64_t first, int64_t last) {
    for (int64_t o = first; o < last; ++o)
      for (int64_t g = 0; g < groups; ++g) {
        const float* const x = from + o * to.in + g * size;
        const int64_t n = std::min(size, to.in - g * size);
        const auto [max_abs, good] = magnitude_of(x, n);
        float scale = max_abs / max_code;
        // the kernels multiply the scale of 4-bit codes by -8, and the product must not overflow
        if (!good || (four && !(scale * 8 <= std::numeric_limits<float>::max()))) {
          finite = false;
          continue;
        }
        if (scale == 0) scale = 1;
        const float rounded = float(Half(scale));
        if (!by_row && std::abs(rounded - scale) <= scale / 512) scale = rounded;
        to.scales.data<float>()[o * groups + g] = scale;
        const auto code = [&](int64_t j) { return code_of(x[j], scale, max_code); };
        if (four)
          for (int64_t j = 0; j < 16; ++j)
            codes[(o * groups + g) * 16 + j] =
                uint8_t((j < n ? code(j) + 8 : 8) | (j + 16 < n ? code(j + 16) + 8 : 8) << 4);
        else
          for (int64_t j = 0; j < n; ++j) codes[o * to.in + g * size + j] = uint8_t(int8_t(code(j)));
      }
  });
  return finite;
}

void read_quantized(const Tensor& codes, const Tensor& scales, QuantFormat format, Tensor& out) {
  const Quantized w{format, codes, scales, out.size(0), out.size(1)};
  const CodedMatrix matrix(w);
  dispatch<float, Half, BFloat16>(out.dtype(), "read_quantized", [&]<class T> {
    parallel_for(w.out, std::max<int64_t>(1, fork_codes / w.in), [&](int64_t first, int64_t last) {
      for (int64_t o = first; o < last; ++o) {
        const uint8_t* const row = matrix.row(o);
        T* const line = out.data<T>() + o * w.in;
        for (int64_t j = 0; j < w.in; ++j) {
          const int64_t g = j / quant_group, i = j % quant_group;
          const int code = matrix.four ? ((row[g * 16 + i % 16] >> (i / 16 * 4)) & 15) - 8 : int(int8_t(row[j]));
          line[j] = T(float(code) * matrix.scale(o, j));
        }
      }
    });
  });
}

CodedRows code_rows(const Tensor& x, const QuantMatmulArgs& args) {
  const int64_t rows = x.size(0), in = x.size(1), width = ceil_div(in, 64) * 64;
  CodedRows coded{zeros({rows, width}, {.dtype = i8, .device = cpu}), empty({rows}, {.device = cpu}), {}};
  const float* const from = x.data<float>();
  if (args.threshold > 0) {
    const float threshold = float(args.threshold);
    coded.kept.resize(size_t(rows));
    for (int64_t r = 0; r < rows; ++r) {
      const float* const line = from + r * in;
      for (int64_t j = 0; j < in; j += 64) {
        const int64_t end = std::min(in, j + 64);
        bool any = false;
        for (int64_t k = j; k < end; ++k) any |= std::abs(line[k]) >= threshold;
        for (int64_t k = j; any && k < end; ++k)
          if (std::abs(line[k]) >= threshold) coded.kept[size_t(args.full_columns ? 0 : r)].push_back(k);
      }
    }
    if (args.full_columns && rows > 0) {
      sort_unique(coded.kept[0]);
      std::fill(coded.kept.begin() + 1, coded.kept.end(), coded.kept[0]);
    }
  }
  static const std::vector<int64_t> none;
  parallel_for(rows, std::max<int64_t>(1, fork_codes / 4 / in), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      code_row(from + r * in, in, coded.kept.empty() ? none : coded.kept[size_t(r)],
               coded.codes.data<int8_t>() + r * width, coded.scales.data<float>() + r);
  });
  return coded;
}

void matmul_quantized(const Tensor& x, const Tensor& codes, const Tensor& scales, QuantFormat format,
                      const Tensor& bias, const QuantMatmulArgs& args, Tensor& out) {
  if (out.numel() == 0) return;
  const Quantized w{format, codes, scales, out.size(1), x.size(1)};
  const Tensor from = x.to(f32), shift = bias.defined() ? bias.to(f32) : bias;
  Tensor to = out.dtype() == f32 ? out : empty(out.shape(), {.device = cpu});
  const float* const added = shift.defined() ? shift.data<float>() : nullptr;
  if (args.dynamic) dynamic(from, w, added, args, to);
  else floating(from, w, added, args.activation, to);
  if (out.dtype() != f32) out.copy_(to);
}

}  // namespace lockstep::on_cpu
