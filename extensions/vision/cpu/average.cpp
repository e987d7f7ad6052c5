// Average pooling of images in both layouts. f16 and bf16 are computed in f32.
#include <vector>

#include "extensions/vision/average_kernels.h"
#include "tensor/cpu/images.h"

namespace lockstep::on_cpu {
namespace {

/// A window of average pooling along one axis: [begin, end) of the input, and the divisor of its mean (`length`).
struct Window {
  int64_t begin, end, length;
};
using Windows = std::vector<Window>;

/// The windows along dim d + 2 of the images x, one for each place of `out`. Adaptive windows if `args` is null.
Windows windows_of(const Tensor& x, const Tensor& out, int d, const PoolArgs* args) {
  const int64_t size = x.size(d + 2), outputs = out.size(d + 2);
  Windows windows;
  for (int64_t i = 0; i < outputs; ++i) {
    if (!args) {
      const int64_t begin = i * size / outputs, end = ((i + 1) * size + outputs - 1) / outputs;
      windows.push_back({begin, end, end - begin});
      continue;
    }
    const int64_t start = i * args->stride[d] - args->padding[d];
    const int64_t padded_end = std::min(start + args->kernel[d], size + args->padding[d]);
    const int64_t begin = std::max<int64_t>(start, 0), end = std::min(padded_end, size);
    windows.push_back({begin, end, args->count_include_pad ? padded_end - start : end - begin});
  }
  return windows;
}

template <class T> void average(const Tensor& x, const Windows& rows, const Windows& columns, Tensor& out) {
  const ImageUnits z(x, out, is_channels_last(x));
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
  const ImageUnits z(grad_x, grad, is_channels_last(grad_x));
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

void pool(const Tensor& x, const PoolArgs* args, Tensor& out) {
  const Windows rows = windows_of(x, out, 0, args), columns = windows_of(x, out, 1, args);
  in_compute_type(x, out, [&]<class T>(const Tensor& in, Tensor& to) { average<T>(in, rows, columns, to); });
}
void pool_grad(const Tensor& grad, const PoolArgs* args, Tensor& grad_x) {
  const Windows rows = windows_of(grad_x, grad, 0, args), columns = windows_of(grad_x, grad, 1, args);
  in_compute_type(grad, grad_x, [&]<class T>(const Tensor& in, Tensor& to) { average_grad<T>(in, rows, columns, to); });
}

}  // namespace

void avg_pool2d(const Tensor& x, const PoolArgs& args, Tensor& out) { pool(x, &args, out); }
void avg_pool2d_grad(const Tensor& grad, const PoolArgs& args, Tensor& grad_x) { pool_grad(grad, &args, grad_x); }
void adaptive_avg_pool2d(const Tensor& x, Tensor& out) { pool(x, nullptr, out); }
void adaptive_avg_pool2d_grad(const Tensor& grad, Tensor& grad_x) { pool_grad(grad, nullptr, grad_x); }

}  // namespace lockstep::on_cpu
