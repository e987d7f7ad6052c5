// Max pooling of images in both layouts (images.h). Memory bound. A thread computes one element of the result. For a
// gradient, it adds up the windows that cover its pixel, in the order of the windows. So every sum has a fixed order
// and needs no atomics.
#include "tensor/cuda/images.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {
namespace {

/// Windows along one axis of the image.
struct Axis {
  int64_t kernel, stride, padding, dilation;
};

Axis axis(int d, const PoolArgs& args) { return {args.kernel[d], args.stride[d], args.padding[d], args.dilation[d]}; }

template <class T>
__global__ void __launch_bounds__(image_threads)
    max_pool_kernel(const T* x, Images in, Images result, Axis rows, Axis columns, T* out, int32_t* indices) {
  using A = Compute<T>;
  each_image_element(result.count(), [&](int64_t n) {
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
// `reach` holds {-first, last}: both are found as integer maxima, which image_threads may update in any order.

__global__ void __launch_bounds__(image_threads) clear_reach_kernel(int64_t count, int2* reach) {
  each_image_element(count, [&](int64_t i) { reach[i] = {INT32_MIN, -1}; });
}

/// Fills `reach`: an entry for each output row, then one for each output column. Block (p, y) handles output row p of
/// `together` units (images, or planes of images), starting with unit y * together.
__global__ void __launch_bounds__(image_threads)
    reach_kernel(const int32_t* indices, Images result, Divider width, int64_t together, int2* reach) {
  const int64_t p = blockIdx.x, first = blockIdx.y * together, wanted = first + together,
                end = wanted < result.units ? wanted : result.units;
  int low_row = INT32_MIN, high_row = -1;
  for (int64_t t = threadIdx.x; t < result.w * result.channels; t += image_threads) {
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
  low_row = group_max<image_threads>(low_row);
  high_row = group_max<image_threads>(high_row);
  if (threadIdx.x > 0) return;
  atomicMax(&reach[p].x, low_row);
  atomicMax(&reach[p].y, high_row);
}

/// For each input row, then each input column, writes the range of outputs whose maxima may lie in it to `chosen`.
__global__ void __launch_bounds__(image_threads)
    chosen_kernel(const int2* reach, int64_t p, int64_t q, int64_t h, int64_t w, int2* chosen) {
  each_image_element(h + w, [&](int64_t n) {
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
__global__ void __launch_bounds__(image_threads) max_pool_grad_kernel(const T* grad, const int32_t* indices, Images in,
                                                                      Images result, const int2* chosen, T* grad_x) {
  using A = Compute<T>;
  each_image_element(in.count(), [&](int64_t n) {
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

}  // namespace

void max_pool2d(const Tensor& x, const PoolArgs& args, Tensor& out, Tensor& indices) {
  const bool last = is_channels_last(x);
  const Images in(x, last), result(out, last);
  for_floats("max_pool2d", x, [&]<class T> {
    launch_over_images("max_pool2d", result.count(), max_pool_kernel<T>, x.data<T>(), in, result, axis(0, args),
                       axis(1, args), out.data<T>(), indices.data<int32_t>());
  });
}

void max_pool2d_grad(const Tensor& grad, const Tensor& indices, Tensor& grad_x) {
  const char* const op = "max_pool2d_grad";
  const bool last = is_channels_last(grad_x);
  const Images in(grad_x, last), result(grad, last);
  const int32_t* const places = indices.data<int32_t>();
  const cuda::Scratch reach(size_t(result.h + result.w) * sizeof(int2)), chosen(size_t(in.h + in.w) * sizeof(int2));
  launch_over_images(op, result.h + result.w, clear_reach_kernel, result.h + result.w, reach.as<int2>());
  if (grad.numel() > 0) {
    constexpr int64_t limit = 65535;  // limit of a grid in y
    const int64_t together = std::max<int64_t>(64, (result.units + limit - 1) / limit);
    cuda::launch(
        {op, dim3(unsigned(result.h), unsigned((result.units + together - 1) / together)), dim3(image_threads)},
        reach_kernel, places, result, Divider(uint32_t(in.w)), together, reach.as<int2>());
  }
  launch_over_images(op, in.h + in.w, chosen_kernel, reach.as<int2>(), result.h, result.w, in.h, in.w,
                     chosen.as<int2>());
  for_floats(op, grad, [&]<class T> {
    launch_over_images(op, in.count(), max_pool_grad_kernel<T>, grad.data<T>(), places, in, result, chosen.as<int2>(),
                       grad_x.data<T>());
  });
}

}  // namespace lockstep::on_cuda
