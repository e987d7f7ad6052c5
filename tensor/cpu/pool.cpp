// Max pooling. The same loops serve both image layouts, see images.h. f16 and bf16 are computed in f32.
#include <algorithm>
#include <limits>

#include "tensor/cpu/images.h"
#include "tensor/kernels.h"

namespace lockstep::on_cpu {
namespace {

/// Replaces `best` by `value`, and `at` by `place`, if `value` is larger or NaN. Of equal values, this keeps the first.
template <class T> inline void take_larger(T value, int32_t place, T& best, int32_t& at) {
  const bool wins = (value > best) | (value != value);
  best = wins ? value : best;
  at = wins ? place : at;
}

/// Max pooling of one plane with 2 x 2 windows and a stride of 2, the usual case.
template <class T>
void max_pool_2x2(const ImageUnits& z, const T* __restrict x, T* __restrict out, int32_t* __restrict indices) {
  for (int64_t p = 0; p < z.p; ++p, x += 2 * z.w, out += z.q, indices += z.q) {
    const int32_t row = int32_t(2 * p * z.w), w = int32_t(z.w);
    const T *upper = x, *lower = x + z.w;
    for (int32_t q = 0; q < int32_t(z.q); ++q) {
      T best = upper[2 * q];
      int32_t at = row + 2 * q;
      take_larger(upper[2 * q + 1], row + 2 * q + 1, best, at);
      take_larger(lower[2 * q], row + w + 2 * q, best, at);
      take_larger(lower[2 * q + 1], row + w + 2 * q + 1, best, at);
      out[q] = best;
      indices[q] = at;
    }
  }
}

template <class T> void max_pool(const Tensor& x, const PoolArgs& args, Tensor& out, Tensor& indices) {
  const ImageUnits z(x, out, is_channels_last(x));
  const bool usual = args.kernel == Dims{2, 2} && args.stride == Dims{2, 2} && args.padding == Dims{0, 0} &&
                     args.dilation == Dims{1, 1} && 2 * z.p <= z.h && 2 * z.q <= z.w;
  const T* const from = x.data<T>();
  T* const to = out.data<T>();
  int32_t* const places = indices.data<int32_t>();
  z.each([&](int64_t unit, auto channels) {
    const T* const image = from + unit * z.h * z.w * channels;
    T* result = to + unit * z.p * z.q * channels;
    int32_t* place = places + unit * z.p * z.q * channels;
    if (channels == 1 && usual) return max_pool_2x2(z, image, result, place);
    for (int64_t p = 0; p < z.p; ++p)
      for (int64_t q = 0; q < z.q; ++q, result += channels, place += channels) {
        const int64_t top = p * args.stride[0] - args.padding[0], left = q * args.stride[1] - args.padding[1];
        bool first = true;
        for (int64_t i = 0; i < args.kernel[0]; ++i)
          for (int64_t j = 0; j < args.kernel[1]; ++j) {
            const int64_t y = top + i * args.dilation[0], column = left + j * args.dilation[1];
            if (y < 0 || y >= z.h || column < 0 || column >= z.w) continue;
            const int32_t here = int32_t(y * z.w + column);
            const T* const values = image + here * int64_t(channels);
            if (first) {
              std::copy_n(values, int64_t(channels), result);
              std::fill_n(place, int64_t(channels), here);
            } else {
              for (int64_t c = 0; c < channels; ++c) take_larger(values[c], here, result[c], place[c]);
            }
            first = false;
          }
        if (first) {  // only padding in the window (possible with dilation)
          std::fill_n(result, int64_t(channels), -std::numeric_limits<T>::infinity());
          std::fill_n(place, int64_t(channels), 0);
        }
      }
  });
}

template <class T> void max_pool_grad(const Tensor& grad, const Tensor& indices, Tensor& grad_x) {
  const ImageUnits z(grad_x, grad, is_channels_last(grad_x));
  const T* const from = grad.data<T>();
  const int32_t* const places = indices.data<int32_t>();
  T* const to = grad_x.data<T>();
  z.each([&](int64_t unit, auto channels) {
    const int64_t size = z.h * z.w * channels, outputs = z.p * z.q;
    T* const image = to + unit * size;
    std::fill_n(image, size, T(0));
    const T* g = from + unit * outputs * channels;
    const int32_t* place = places + unit * outputs * channels;
    for (int64_t i = 0; i < outputs; ++i, g += channels, place += channels)
      for (int64_t c = 0; c < channels; ++c) image[place[c] * int64_t(channels) + c] += g[c];
  });
}

}  // namespace

void max_pool2d(const Tensor& x, const PoolArgs& args, Tensor& out, Tensor& indices) {
  in_compute_type(x, out, [&]<class T>(const Tensor& in, Tensor& to) { max_pool<T>(in, args, to, indices); });
}

void max_pool2d_grad(const Tensor& grad, const Tensor& indices, Tensor& grad_x) {
  in_compute_type(grad, grad_x, [&]<class T>(const Tensor& in, Tensor& to) { max_pool_grad<T>(in, indices, to); });
}

}  // namespace lockstep::on_cpu
