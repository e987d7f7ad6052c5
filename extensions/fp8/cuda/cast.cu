// 8-bit floats: a matrix is read once to produce its codes, their transpose and its largest absolute value. Memory
// bound: 2 or 4 bytes read and 1 or 2 bytes written per element.
#include "extensions/fp8/kernels.h"
#include "tensor/cuda/warp.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256, side = 64, run = 4, lanes = side / run, high = threads / lanes;
constexpr Fp8Format format_of(bool is_e5m2) { return is_e5m2 ? Fp8Format::e5m2 : Fp8Format::e4m3; }
struct alignas(4) Codes {
  uint8_t v[run];
};

/// Converts x to codes. A block converts one tile of side x side elements at a time. A thread converts `run`
/// neighbours in every `high`-th row of the tile. Then it writes `run` neighbours in every `high`-th column to the
/// transpose. `aligned` is true if all these groups of `run` elements are complete and aligned.
template <bool is_e5m2, class T, bool aligned>
__global__ void __launch_bounds__(threads)
    cast_kernel(const T* x, int64_t rows, int64_t columns, int64_t tiles_across, int64_t tiles, const float* scale,
                float* amax, uint8_t* codes, uint8_t* turned) {
  LOCKSTEP_SHARED(uint8_t, tile, [side][side + run]);
  const int at = int(threadIdx.x) % lanes * run, line = int(threadIdx.x) / lanes;
  const float factor = *scale;
  float max_abs = 0;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t r0 = t / tiles_across * side, c0 = t % tiles_across * side;
#pragma unroll
    for (int i = line; i < side; i += high) {
      const int64_t r = r0 + i, c = c0 + at;
      if (r >= rows || c >= columns) continue;
      Vector<T, run> v;
      if constexpr (aligned) v = *reinterpret_cast<const Vector<T, run>*>(x + r * columns + c);
      Codes made;
#pragma unroll
      for (int j = 0; j < run; ++j) {
        if constexpr (!aligned) v.v[j] = c + j < columns ? x[r * columns + c + j] : T(0.f);
        const float value = float(v.v[j]), size = fabsf(value);
        max_abs = size > max_abs ? size : max_abs;  // skips NaN
        made.v[j] = encode_fp8<format_of(is_e5m2)>(value * factor);
        if (turned) tile[i][at + j] = made.v[j];
      }
      if (!codes) continue;
      if constexpr (aligned) {
        *reinterpret_cast<Codes*>(codes + r * columns + c) = made;
      } else {
        for (int j = 0; j < run; ++j)
          if (c + j < columns) codes[r * columns + c + j] = made.v[j];
      }
    }
    if (!turned) continue;
    __syncthreads();
#pragma unroll
    for (int j = line; j < side; j += high) {
      const int64_t r = r0 + at, c = c0 + j;
      if (r >= rows || c >= columns) continue;
      if constexpr (aligned) {
        Codes made;
#pragma unroll
        for (int i = 0; i < run; ++i) made.v[i] = tile[at + i][j];
        *reinterpret_cast<Codes*>(turned + c * rows + r) = made;
      } else {
        for (int i = 0; i < run; ++i)
          if (r + i < rows) turned[c * rows + r + i] = tile[at + i][j];
      }
    }
    __syncthreads();
  }
  if (!amax) return;
  max_abs = group_max<threads>(max_abs);
  // Non-negative floats compare like their bit patterns.
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<int*>(amax), std::bit_cast<int>(max_abs));
}

template <bool is_e5m2, class T>
__global__ void __launch_bounds__(threads) read_kernel(const uint8_t* codes, int64_t n, T* out) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x)
    out[i] = T(decode_fp8<format_of(is_e5m2)>(codes[i]));
}

template <class Fn> void with_format(Fp8Format format, Fn&& fn) {
  if (format == Fp8Format::e4m3) fn.template operator()<false>();
  else fn.template operator()<true>();
}

}  // namespace

void cast_fp8(const Tensor& x, Fp8Format format, const Tensor& scale, Tensor& amax, Tensor& codes, Tensor& turned) {
  const int64_t rows = x.size(0), columns = x.size(1), across = (columns + side - 1) / side,
                tiles = across * ((rows + side - 1) / side);
  uint8_t *const to = data_or_null<uint8_t>(codes), *const across_to = data_or_null<uint8_t>(turned);
  float* const max_abs = data_or_null<float>(amax);
  dispatch<float, Half, BFloat16>(x.dtype(), "cast_fp8", [&]<class T> {
    const T* const from = x.data<T>();
    const bool aligned = rows % run == 0 && columns % run == 0 && is_aligned(from, run) && is_aligned(to, run) &&
                         is_aligned(across_to, run);
    with_format(format, [&]<bool f> {
      cuda::launch({"cast_fp8", dim3(cuda::blocks_for(tiles, 1)), dim3(threads)},
                   aligned ? cast_kernel<f, T, true> : cast_kernel<f, T, false>, from, rows, columns, across, tiles,
                   scale.data<float>(), max_abs, to, across_to);
    });
  });
}

void read_fp8(const Tensor& codes, Fp8Format format, Tensor& out) {
  dispatch<float, BFloat16>(out.dtype(), "read_fp8", [&]<class T> {
    with_format(format, [&]<bool f> {
      cuda::launch({"read_fp8", dim3(cuda::blocks_for(out.numel(), threads)), dim3(threads)}, read_kernel<f, T>,
                   codes.data<uint8_t>(), out.numel(), out.data<T>());
    });
  });
}

}  // namespace lockstep::on_cuda
