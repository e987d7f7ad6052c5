// Pooling of images in both layouts (tensor/layout.h). A unit is a plane with one channel (row-major) or an image with
// all its channels (channels last): element (unit, y, x, c) is at ((unit h + y) w + x) channels + c. Memory bound. A
// thread computes one element of the result. For a gradient, it adds up the windows that cover its pixel, in the order
// of the windows, so every sum has a fixed order and needs no atomics.
#include "tensor/cuda/nest.h"
#include "tensor/cuda/warp.h"
#include "tensor/kernels.h"
#include "tensor/layout.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256;

/// The index arithmetic of a batch of images: flat index to pixel, and back.
struct Images {
  int64_t units, h, w, channels;
  bool narrow;
  Divider by_channels, by_w, by_h;

  Images(const Tensor& x, bool last)
      : units(last ? x.size(0) : x.size(0) * x.size(1)),
        h(x.size(2)),
        w(x.size(3)),
        channels(last ? x.size(1) : 1),
        narrow(x.numel() < max_narrow) {
    if (narrow && x.numel() > 0)
      by_channels = Divider(uint32_t(channels)), by_w = Divider(uint32_t(w)), by_h = Divider(uint32_t(h));
  }
  LOCKSTEP_HD int64_t count() const { return units * h * w * channels; }

  struct Pixel {
    int64_t unit, y, x, c;
  };
  __device__ Pixel place(int64_t i) const {
    if (narrow) {
      const uint32_t pixel = by_channels.divide(uint32_t(i)), line = by_w.divide(pixel), unit = by_h.divide(line);
      return {unit, line - unit * by_h.by, pixel - line * by_w.by, uint32_t(i) - pixel * by_channels.by};
    }
    const int64_t pixel = i / channels, line = pixel / w;
    return {line / h, line % h, pixel % w, i % channels};
  }
  __device__ int64_t at(int64_t unit, int64_t y, int64_t x, int64_t c) const {
    return ((unit * h + y) * w + x) * channels + c;
  }
};

template <class Fn> __device__ inline void each_element(int64_t count, Fn fn) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count; i += int64_t(gridDim.x) * threads) fn(i);
}
template <class... P, class... Args>
void launch_over(const char* op, int64_t count, void (*kernel)(P...), Args&&... args) {
  cuda::launch({op, dim3(cuda::blocks_for(count, threads)), dim3(threads)}, kernel, std::forward<Args>(args)...);
}

/// Windows along one axis of the image.
struct Axis {
  int64_t size, outputs, kernel = 0, stride = 0, padding = 0, dilation = 1;
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

Axis axis(const Tensor& x, const Tensor& out, int d, const PoolArgs& args) {
  return {x.size(d + 2),   out.size(d + 2),  args.kernel[d], args.stride[d],
          args.padding[d], args.dilation[d], false,          args.count_include_pad};
}
Axis adaptive_axis(const Tensor& x, const Tensor& out, int d) {
  return {.size = x.size(d + 2), .outputs = out.size(d + 2), .adaptive = true};
}

// --- maximum ---

template <class T>
__global__ void __launch_bounds__(threads)
    max_pool_kernel(const T* x, Images in, Images result, Axis rows, Axis columns, T* out, int32_t* indices) {
  using A = Compute<T>;
  each_element(result.count(), [&](int64_t n) {
    const auto [unit, p, q, c] = result.place(n);
    const int64_t top = p * rows.stride - rows.padding, left = q * columns.stride - columns.padding;
    A best = -infinity<A>;
    int32_t place = 0;
    bool first = true;
    for (int64_t i = 0; i < rows.kernel; ++i) {
      const int64_t y = top + i * rows.dilation;
      if (y < 0 || y >= in.h) continue;
      for (int64_t j = 0; j < columns.kernel; ++j) {
        const int64_t column = left + j * columns.dilation;
        if (column < 0 || column >= in.w) continue;
        const A value = load(x + in.at(unit, y, column, c));
        // Takes a larger value or NaN. Of equal values, keeps the first.
        if (first || value > best || value != value) {
          best = value;
          place = int32_t(y * in.w + column);
        }
        first = false;
      }
    }
    store(out + n, best);
    indices[n] = place;
  });
}

// Backward of max pooling has no PoolArgs, only the positions of the maxima (`indices`). reach_kernel() first finds,
// for each output row p, the first and last input row that holds one of its maxima in any image. chosen_kernel() then
// finds, for each input row y, the range of output rows whose maxima may lie in it. Both do the same for columns.
// `reach` holds {-first, last}: both are found as integer maxima, which threads may update in any order.

__global__ void __launch_bounds__(threads) clear_reach_kernel(int64_t count, int2* reach) {
  each_element(count, [&](int64_t i) { reach[i] = {INT32_MIN, -1}; });
}

/// Fills `reach`: an entry for each output row, then one for each output column. Block (p, y) handles output row p of
/// `together` units (images, or planes of images), starting with unit y * together.
__global__ void __launch_bounds__(threads)
    reach_kernel(const int32_t* indices, Images result, Divider width, int64_t together, int2* reach) {
  const int64_t p = blockIdx.x, first = blockIdx.y * together, wanted = first + together,
                end = wanted < result.units ? wanted : result.units;
  int low_row = INT32_MIN, high_row = -1;
  for (int64_t t = threadIdx.x; t < result.w * result.channels; t += threads) {
    int low = INT32_MIN, high = -1;
    for (int64_t unit = first; unit < end; ++unit) {
      const int place = indices[(unit * result.h + p) * result.w * result.channels + t],
                row = int(width.divide(uint32_t(place))),
                column = int(uint32_t(place) - uint32_t(row) * uint32_t(width.by));
      low_row = larger_of(low_row, -row);
      high_row = larger_of(high_row, row);
      low = larger_of(low, -column);
      high = larger_of(high, column);
    }
    int2* const of_column = reach + result.h + t / result.channels;
    atomicMax(&of_column->x, low);
    atomicMax(&of_column->y, high);
  }
  low_row = group_max<threads>(low_row);
  high_row = group_max<threads>(high_row);
  if (threadIdx.x > 0) return;
  atomicMax(&reach[p].x, low_row);
  atomicMax(&reach[p].y, high_row);
}

/// For each input row, then each input column, writes the range of outputs whose maxima may lie in it to `chosen`.
__global__ void __launch_bounds__(threads)
    chosen_kernel(const int2* reach, int64_t p, int64_t q, int64_t h, int64_t w, int2* chosen) {
  each_element(h + w, [&](int64_t n) {
    const bool column = n >= h;
    const int64_t own = column ? n - h : n, outputs = column ? q : p;
    const int2* const from = column ? reach + p : reach;
    int2 range = {0, 0};
    for (int64_t i = 0; i < outputs; ++i) {
      if (own < -int64_t(from[i].x) || own > from[i].y) continue;
      if (range.y == 0) range.x = int(i);
      range.y = int(i) + 1;
    }
    chosen[n] = range;
  });
}

template <class T>
__global__ void __launch_bounds__(threads) max_pool_grad_kernel(const T* grad, const int32_t* indices, Images in,
                                                                Images result, const int2* chosen, T* grad_x) {
  using A = Compute<T>;
  each_element(in.count(), [&](int64_t n) {
    const auto [unit, y, x, c] = in.place(n);
    const int2 rows = chosen[y], columns = chosen[in.h + x];
    const int32_t place = int32_t(y * in.w + x);
    A sum = 0;
    for (int p = rows.x; p < rows.y; ++p) {
      for (int q = columns.x; q < columns.y; ++q) {
        const int64_t i = result.at(unit, p, q, c);
        if (indices[i] == place) sum += load(grad + i);
      }
    }
    store(grad_x + n, sum);
  });
}

// --- average ---

template <class T>
__global__ void __launch_bounds__(threads)
    average_kernel(const T* x, Images in, Images result, Axis rows, Axis columns, T* out) {
  using A = Compute<T>;
  each_element(result.count(), [&](int64_t n) {
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
__global__ void __launch_bounds__(threads)
    average_grad_kernel(const T* grad, Images in, Images result, Axis rows, Axis columns, T* grad_x) {
  using A = Compute<T>;
  each_element(in.count(), [&](int64_t n) {
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

void average(const char* op, const Tensor& x, const Axis& rows, const Axis& columns, Tensor& out) {
  const bool last = is_channels_last(x);
  const Images in(x, last), result(out, last);
  for_floats(op, x, [&]<class T> {
    launch_over(op, result.count(), average_kernel<T>, x.data<T>(), in, result, rows, columns, out.data<T>());
  });
}
void average_grad(const char* op, const Tensor& grad, const Axis& rows, const Axis& columns, Tensor& grad_x) {
  const bool last = is_channels_last(grad_x);
  const Images in(grad_x, last), result(grad, last);
  for_floats(op, grad, [&]<class T> {
    launch_over(op, in.count(), average_grad_kernel<T>, grad.data<T>(), in, result, rows, columns, grad_x.data<T>());
  });
}

}  // namespace

void max_pool2d(const Tensor& x, const PoolArgs& args, Tensor& out, Tensor& indices) {
  const bool last = is_channels_last(x);
  const Images in(x, last), result(out, last);
  for_floats("max_pool2d", x, [&]<class T> {
    launch_over("max_pool2d", result.count(), max_pool_kernel<T>, x.data<T>(), in, result, axis(x, out, 0, args),
                axis(x, out, 1, args), out.data<T>(), indices.data<int32_t>());
  });
}

void max_pool2d_grad(const Tensor& grad, const Tensor& indices, Tensor& grad_x) {
  const char* const op = "max_pool2d_grad";
  const bool last = is_channels_last(grad_x);
  const Images in(grad_x, last), result(grad, last);
  const int32_t* const places = indices.data<int32_t>();
  const cuda::Scratch reach(size_t(result.h + result.w) * sizeof(int2)), chosen(size_t(in.h + in.w) * sizeof(int2));
  launch_over(op, result.h + result.w, clear_reach_kernel, result.h + result.w, reach.as<int2>());
  if (grad.numel() > 0) {
    constexpr int64_t limit = 65535;  // limit of a grid in y
    const int64_t together = std::max<int64_t>(64, (result.units + limit - 1) / limit);
    cuda::launch({op, dim3(unsigned(result.h), unsigned((result.units + together - 1) / together)), dim3(threads)},
                 reach_kernel, places, result, Divider(uint32_t(in.w)), together, reach.as<int2>());
  }
  launch_over(op, in.h + in.w, chosen_kernel, reach.as<int2>(), result.h, result.w, in.h, in.w, chosen.as<int2>());
  for_floats(op, grad, [&]<class T> {
    launch_over(op, in.count(), max_pool_grad_kernel<T>, grad.data<T>(), places, in, result, chosen.as<int2>(),
                grad_x.data<T>());
  });
}

void avg_pool2d(const Tensor& x, const PoolArgs& args, Tensor& out) {
  average("avg_pool2d", x, axis(x, out, 0, args), axis(x, out, 1, args), out);
}
void avg_pool2d_grad(const Tensor& grad, const PoolArgs& args, Tensor& grad_x) {
  average_grad("avg_pool2d_grad", grad, axis(grad_x, grad, 0, args), axis(grad_x, grad, 1, args), grad_x);
}
void adaptive_avg_pool2d(const Tensor& x, Tensor& out) {
  average("adaptive_avg_pool2d", x, adaptive_axis(x, out, 0), adaptive_axis(x, out, 1), out);
}
void adaptive_avg_pool2d_grad(const Tensor& grad, Tensor& grad_x) {
  average_grad("adaptive_avg_pool2d_grad", grad, adaptive_axis(grad_x, grad, 0), adaptive_axis(grad_x, grad, 1),
               grad_x);
}

}  // namespace lockstep::on_cuda
