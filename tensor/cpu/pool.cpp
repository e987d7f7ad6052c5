// Pooling. The same loops serve both image layouts. They walk over units: a unit is one channel of one image
// (row-major) or a whole image (channels last). Each position of a unit holds `channels` numbers: one, or one for
// each channel. The units are divided among threads. f16 and bf16 are computed in f32.
#include <algorithm>
#include <limits>
#include <vector>

#include "tensor/cpu/parallel.h"
#include "tensor/kernels.h"
#include "tensor/layout.h"
#include "tensor/ops.h"

namespace lockstep::on_cpu {
namespace {

struct Units {
  int64_t count, channels, h, w, p, q;

  Units(const Tensor& x, const Tensor& y, bool last)
      : count(last ? x.size(0) : x.size(0) * x.size(1)),
        channels(last ? x.size(1) : 1),
        h(x.size(2)),
        w(x.size(3)),
        p(y.size(2)),
        q(y.size(3)) {}

  int64_t grain() const { return std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, h * w * channels)); }

  /// Calls fn(unit, channels) for all units; channels is a compile-time constant if it is 1.
  template <class Fn> void each(Fn&& fn) const {
    parallel_for(count, grain(), [&](int64_t begin, int64_t end) {
      if (channels == 1)
        for (int64_t u = begin; u < end; ++u) fn(u, std::integral_constant<int64_t, 1>());
      else
        for (int64_t u = begin; u < end; ++u) fn(u, channels);
    });
  }
};

/// Replaces `best` by `value`, and `at` by `place`, if `value` is larger or NaN. Of equal values, this keeps the first.
template <class T> inline void take_larger(T value, int32_t place, T& best, int32_t& at) {
  const bool wins = (value > best) | (value != value);
  best = wins ? value : best;
  at = wins ? place : at;
}

/// Max pooling of one plane with 2 x 2 windows and a stride of 2, the usual case.
template <class T>
void max_pool_2x2(const Units& z, const T* __restrict x, T* __restrict out, int32_t* __restrict indices) {
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
  const Units z(x, out, is_channels_last(x));
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
  const Units z(grad_x, grad, is_channels_last(grad_x));
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

/// A window of average pooling along one axis: [begin, end) of the input, and the divisor of its mean (`length`).
struct Window {
  int64_t begin, end, length;
};
using Windows = std::vector<Window>;

Windows pool_windows(int64_t size, int64_t outputs, int d, const PoolArgs& args) {
  Windows windows;
  for (int64_t i = 0; i < outputs; ++i) {
    const int64_t start = i * args.stride[d] - args.padding[d];
    const int64_t padded_end = std::min(start + args.kernel[d], size + args.padding[d]);
    const int64_t begin = std::max<int64_t>(start, 0), end = std::min(padded_end, size);
    windows.push_back({begin, end, args.count_include_pad ? padded_end - start : end - begin});
  }
  return windows;
}

Windows adaptive_windows(int64_t size, int64_t outputs) {
  Windows windows;
  for (int64_t i = 0; i < outputs; ++i) {
    const int64_t begin = i * size / outputs, end = ((i + 1) * size + outputs - 1) / outputs;
    windows.push_back({begin, end, end - begin});
  }
  return windows;
}

template <class T> void average(const Tensor& x, const Windows& rows, const Windows& columns, Tensor& out) {
  const Units z(x, out, is_channels_last(x));
  const T* const from = x.data<T>();
  T* const to = out.data<T>();
  z.each([&](int64_t unit, auto channels) {
    const T* const image = from + unit * z.h * z.w * channels;
    T* result = to + unit * z.p * z.q * channels;
    for (const Window& row : rows)
      for (const Window& column : columns) {
        std::fill_n(result, int64_t(channels), T(0));
        for (int64_t y = row.begin; y < row.end; ++y)
          for (int64_t i = column.begin; i < column.end; ++i)
            for (int64_t c = 0; c < channels; ++c) result[c] += image[(y * z.w + i) * channels + c];
        const T count = T(row.length * column.length);
        for (int64_t c = 0; c < channels; ++c) result[c] /= count;
        result += channels;
      }
  });
}

template <class T> void average_grad(const Tensor& grad, const Windows& rows, const Windows& columns, Tensor& grad_x) {
  const Units z(grad_x, grad, is_channels_last(grad_x));
  const T* const from = grad.data<T>();
  T* const to = grad_x.data<T>();
  z.each([&](int64_t unit, auto channels) {
    T* const image = to + unit * z.h * z.w * channels;
    std::fill_n(image, z.h * z.w * channels, T(0));
    const T* g = from + unit * z.p * z.q * channels;
    for (const Window& row : rows)
      for (const Window& column : columns) {
        const T count = T(row.length * column.length);
        for (int64_t y = row.begin; y < row.end; ++y)
          for (int64_t i = column.begin; i < column.end; ++i)
            for (int64_t c = 0; c < channels; ++c) image[(y * z.w + i) * channels + c] += g[c] / count;
        g += channels;
      }
  });
}

/// Runs fn<T>(input, output). For f16 and bf16 it runs on f32 copies and rounds the output once.
template <class Fn> void in_compute_type(const Tensor& in, Tensor& out, Fn&& fn) {
  if (out.numel() == 0) return;
  if (in.dtype() == f64) return fn.template operator()<double>(in, out);
  if (in.dtype() == f32) return fn.template operator()<float>(in, out);
  const auto twin = [](const Tensor& x) {  // same layout, f32
    return Tensor(Storage::allocate(x.numel() * 4, x.device()), 0, x.shape(), x.strides(), f32);
  };
  Tensor wide = twin(in), result = twin(out);
  wide.copy_(in);
  fn.template operator()<float>(wide, result);
  out.copy_(result);
}

}  // namespace

void max_pool2d(const Tensor& x, const PoolArgs& args, Tensor& out, Tensor& indices) {
  in_compute_type(x, out, [&]<class T>(const Tensor& in, Tensor& to) { max_pool<T>(in, args, to, indices); });
}

void max_pool2d_grad(const Tensor& grad, const Tensor& indices, Tensor& grad_x) {
  in_compute_type(grad, grad_x, [&]<class T>(const Tensor& in, Tensor& to) { max_pool_grad<T>(in, indices, to); });
}

void avg_pool2d(const Tensor& x, const PoolArgs& args, Tensor& out) {
  const Windows rows = pool_windows(x.size(2), out.size(2), 0, args),
                columns = pool_windows(x.size(3), out.size(3), 1, args);
  in_compute_type(x, out, [&]<class T>(const Tensor& in, Tensor& to) { average<T>(in, rows, columns, to); });
}

void avg_pool2d_grad(const Tensor& grad, const PoolArgs& args, Tensor& grad_x) {
  const Windows rows = pool_windows(grad_x.size(2), grad.size(2), 0, args),
                columns = pool_windows(grad_x.size(3), grad.size(3), 1, args);
  in_compute_type(grad, grad_x, [&]<class T>(const Tensor& in, Tensor& to) { average_grad<T>(in, rows, columns, to); });
}

void adaptive_avg_pool2d(const Tensor& x, Tensor& out) {
  const Windows rows = adaptive_windows(x.size(2), out.size(2)), columns = adaptive_windows(x.size(3), out.size(3));
  in_compute_type(x, out, [&]<class T>(const Tensor& in, Tensor& to) { average<T>(in, rows, columns, to); });
}

void adaptive_avg_pool2d_grad(const Tensor& grad, Tensor& grad_x) {
  const Windows rows = adaptive_windows(grad_x.size(2), grad.size(2)),
                columns = adaptive_windows(grad_x.size(3), grad.size(3));
  in_compute_type(grad, grad_x, [&]<class T>(const Tensor& in, Tensor& to) { average_grad<T>(in, rows, columns, to); });
}

}  // namespace lockstep::on_cpu
