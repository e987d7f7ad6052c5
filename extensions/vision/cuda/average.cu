// Average pooling of images in both layouts. Memory bound. A thread computes one element of the result. For a gradient,
// it adds up the windows that cover its pixel, in the order of the windows. So every sum has a fixed order and needs no
// atomics.
#include "extensions/vision/average_kernels.h"
#include "tensor/cuda/images.h"

namespace lockstep::on_cuda {
namespace {

/// Windows along one axis of the image.
struct Axis {
  int64_t size, outputs, kernel = 0, stride = 0, padding = 0;
  bool adaptive = false, count_padding = true;

  struct Range {
    int64_t begin, end;
  };
  /// The places inside the image that window i covers.
  __device__ Range window(int64_t i) const {
    if (adaptive) return {i * size / outputs, ((i + 1) * size + outputs - 1) / outputs};
    const int64_t start = i * stride - padding, end = start + kernel;
    return {start < 0 ? 0 : start, end < size ? end : size};
  }
  /// The size of window i along this axis by which the mean divides. It includes padding if count_padding is true.
  __device__ int64_t length(int64_t i) const {
    const Range inside = window(i);
    if (adaptive || !count_padding) return inside.end - inside.begin;
    const int64_t start = i * stride - padding, end = start + kernel;
    return (end < size + padding ? end : size + padding) - start;
  }
  /// The windows that may contain place y.
  __device__ Range covering(int64_t y) const {
    if (adaptive) return {y * outputs / size, ((y + 1) * outputs + size - 1) / size};
    const int64_t first = y + padding - kernel + stride, end = (y + padding) / stride + 1;
    return {first < 0 ? 0 : first / stride, end < outputs ? end : outputs};
  }
};

/// Windows along dim d + 2 of the images x; adaptive ones if `args` is null.
Axis axis(const Tensor& x, const Tensor& out, int d, const PoolArgs* args) {
  const int64_t size = x.size(d + 2), outputs = out.size(d + 2);
  if (!args) return {.size = size, .outputs = outputs, .adaptive = true};
  return {size, outputs, args->kernel[d], args->stride[d], args->padding[d], false, args->count_include_pad};
}

template <class T>
__global__ void __launch_bounds__(image_threads)
    average_kernel(const T* x, Images in, Images result, Axis rows, Axis columns, T* out) {
  using A = Compute<T>;
  each_image_element(result.count(), [&](int64_t n) {
    const auto [unit, p, q, c] = result.place(n);
    const auto [top, bottom] = rows.window(p);
    const auto [left, right] = columns.window(q);
    A sum = 0;
    for (int64_t y = top; y < bottom; ++y) {
      for (int64_t column = left; column < right; ++column) sum += load(x + in.at(unit, y, column, c));
    }
    store(out + n, sum / A(rows.length(p) * columns.length(q)));
  });
}

template <class T>
__global__ void __launch_bounds__(image_threads)
    average_grad_kernel(const T* grad, Images in, Images result, Axis rows, Axis columns, T* grad_x) {
  using A = Compute<T>;
  each_image_element(in.count(), [&](int64_t n) {
    const auto [unit, y, x, c] = in.place(n);
    const auto [top, bottom] = rows.covering(y);
    const auto [left, right] = columns.covering(x);
    A sum = 0;
    for (int64_t p = top; p < bottom; ++p) {
      for (int64_t q = left; q < right; ++q)
        sum += load(grad + result.at(unit, p, q, c)) / A(rows.length(p) * columns.length(q));
    }
    store(grad_x + n, sum);
  });
}

void average(const char* op, const Tensor& x, const PoolArgs* args, Tensor& out) {
  const Axis rows = axis(x, out, 0, args), columns = axis(x, out, 1, args);
  const bool last = is_channels_last(x);
  const Images in(x, last), result(out, last);
  for_floats(op, x, [&]<class T> {
    launch_over_images(op, result.count(), average_kernel<T>, x.data<T>(), in, result, rows, columns, out.data<T>());
  });
}
void average_grad(const char* op, const Tensor& grad, const PoolArgs* args, Tensor& grad_x) {
  const Axis rows = axis(grad_x, grad, 0, args), columns = axis(grad_x, grad, 1, args);
  const bool last = is_channels_last(grad_x);
  const Images in(grad_x, last), result(grad, last);
  for_floats(op, grad, [&]<class T> {
    launch_over_images(op, in.count(), average_grad_kernel<T>, grad.data<T>(), in, result, rows, columns,
                       grad_x.data<T>());
  });
}

}  // namespace

void avg_pool2d(const Tensor& x, const PoolArgs& args, Tensor& out) { average("avg_pool2d", x, &args, out); }
void avg_pool2d_grad(const Tensor& grad, const PoolArgs& args, Tensor& grad_x) {
  average_grad("avg_pool2d_grad", grad, &args, grad_x);
}
void adaptive_avg_pool2d(const Tensor& x, Tensor& out) { average("adaptive_avg_pool2d", x, nullptr, out); }
void adaptive_avg_pool2d_grad(const Tensor& grad, Tensor& grad_x) {
  average_grad("adaptive_avg_pool2d_grad", grad, nullptr, grad_x);
}

}  // namespace lockstep::on_cuda
