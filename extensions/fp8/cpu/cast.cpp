// Casts to and from 8-bit floats. Rounding is done by float8.h, as on every device.
#include <array>
#include <atomic>
#include <cmath>

#include "extensions/fp8/kernels.h"
#include "tensor/convert.h"
#include "tensor/cpu/parallel.h"
#include "tensor/kernels.h"

namespace lockstep::on_cpu {
namespace {

constexpr int64_t turned_block = 64;  // block size: the codes of a block fill only a part of the L1 cache

template <Fp8Format format, class T> float encode_row(const T* x, int64_t n, float scale, uint8_t* codes) {
  float max_abs = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float value = float(x[i]), size = std::fabs(value);
    max_abs = size > max_abs ? size : max_abs;  // ignores NaN
    codes[i] = encode_fp8<format>(value * scale);
  }
  return max_abs;
}

template <class Fn> void with_format(Fp8Format format, Fn&& fn) {
  if (format == Fp8Format::e4m3) fn.template operator()<Fp8Format::e4m3>();
  else fn.template operator()<Fp8Format::e5m2>();
}

}  // namespace

void cast_fp8(const Tensor& x, Fp8Format format, const Tensor& scale_, Tensor& amax, Tensor& codes, Tensor& turned) {
  const int64_t rows = x.size(0), columns = x.size(1);
  const float scale = *scale_.data<float>();
  uint8_t* const to = codes.defined() ? codes.data<uint8_t>() : nullptr;
  uint8_t* const across = turned.defined() ? turned.data<uint8_t>() : nullptr;
  const int64_t blocks = ceil_div(rows, turned_block);
  std::atomic<float> max_abs = 0;
  dispatch<float, Half, BFloat16>(x.dtype(), "cast_fp8", [&]<class T> {
    const T* const from = x.data<T>();
    with_format(format, [&]<Fp8Format f> {
      parallel_for(blocks, std::max<int64_t>(1, grain / (turned_block * std::max<int64_t>(columns, 1))),
                   [&](int64_t begin, int64_t end) {
                     float here = 0;
                     uint8_t block[turned_block * turned_block];
                     for (int64_t r = begin * turned_block; r < std::min(end * turned_block, rows); r += turned_block) {
                       const int64_t high = std::min(turned_block, rows - r);
                       for (int64_t c = 0; c < columns; c += turned_block) {
                         const int64_t wide = std::min(turned_block, columns - c);
                         for (int64_t i = 0; i < high; ++i) {
                           uint8_t* const row = to ? to + (r + i) * columns + c : block + i * turned_block;
                           here = std::max(here, encode_row<f>(from + (r + i) * columns + c, wide, scale, row));
                           if (to && across) std::copy_n(row, wide, block + i * turned_block);
                         }
                         if (!across) continue;
                         for (int64_t j = 0; j < wide; ++j)
                           for (int64_t i = 0; i < high; ++i)
                             across[(c + j) * rows + r + i] = block[i * turned_block + j];
                       }
                     }
                     for (float current = max_abs.load();
                          here > current && !max_abs.compare_exchange_weak(current, here);) {}
                   });
    });
  });
  if (amax.defined()) *amax.data<float>() = std::max(*amax.data<float>(), max_abs.load());
}

void read_fp8(const Tensor& codes, Fp8Format format, Tensor& out) {
  const uint8_t* const from = codes.data<uint8_t>();
  dispatch<float, BFloat16>(out.dtype(), "read_fp8", [&]<class T> {
    std::array<T, 256> table;
    with_format(format, [&]<Fp8Format f> {
      for (int i = 0; i < 256; ++i) table[size_t(i)] = T(decode_fp8<f>(uint8_t(i)));
    });
    T* const to = out.data<T>();
    parallel_for(out.numel(), light_grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = table[from[i]];
    });
  });
}

bool matmul_fp8(const Tensor&, Fp8Format, const Tensor&, const Tensor&, Fp8Format, const Tensor&, const Tensor&,
                Tensor&) {
  return false;
}

}  // namespace lockstep::on_cpu
