#pragma once
// Images in both layouts (tensor/layout.h), for kernels such as pooling. A unit is a plane with one channel (row-major)
// or an image with all its channels (channels last): element (unit, y, x, c) is at ((unit h + y) w + x) channels + c.
#include "tensor/cuda/nest.h"
#include "tensor/cuda/warp.h"
#include "tensor/layout.h"

namespace lockstep::on_cuda {

/// Threads of a block.
inline constexpr int image_threads = 256;

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
  /// Number of elements.
  LOCKSTEP_HD int64_t count() const { return units * h * w * channels; }

  /// The place of an element.
  struct Pixel {
    int64_t unit, y, x, c;
  };
  /// Returns the place of element i.
  __device__ Pixel place(int64_t i) const {
    if (narrow) {
      const uint32_t pixel = by_channels.divide(uint32_t(i)), line = by_w.divide(pixel), unit = by_h.divide(line);
      return {unit, line - unit * by_h.by, pixel - line * by_w.by, uint32_t(i) - pixel * by_channels.by};
    }
    const int64_t pixel = i / channels, line = pixel / w;
    return {line / h, line % h, pixel % w, i % channels};
  }
  /// The element at a place.
  __device__ int64_t at(int64_t unit, int64_t y, int64_t x, int64_t c) const {
    return ((unit * h + y) * w + x) * channels + c;
  }
};

/// Calls fn(i) for i < count, divided among the threads of all blocks.
template <class Fn> __device__ inline void each_image_element(int64_t count, Fn fn) {
  for (int64_t i = int64_t(blockIdx.x) * image_threads + threadIdx.x; i < count;
       i += int64_t(gridDim.x) * image_threads)
    fn(i);
}
/// Launches a kernel that calls each_image_element().
template <class... P, class... Args>
void launch_over_images(const char* op, int64_t count, void (*kernel)(P...), Args&&... args) {
  cuda::launch({op, dim3(cuda::blocks_for(count, image_threads)), dim3(image_threads)}, kernel,
               std::forward<Args>(args)...);
}

}  // namespace lockstep::on_cuda
