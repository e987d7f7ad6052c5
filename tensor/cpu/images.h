#pragma once
// Loops over images in both layouts (tensor/layout.h), for kernels such as pooling. They walk over units: a unit is one
// channel of one image (row-major) or a whole image (channels last). Each position of a unit holds `channels` numbers:
// one, or one for each channel. The units are divided among threads.
#include <algorithm>
#include <type_traits>

#include "tensor/cpu/parallel.h"
#include "tensor/layout.h"

namespace lockstep::on_cpu {

/// The units of images with pixels h x w, and of what is computed from them, with pixels p x q.
struct ImageUnits {
  int64_t count, channels, h, w, p, q;

  ImageUnits(const Tensor& x, const Tensor& y, bool last)
      : count(last ? x.size(0) : x.size(0) * x.size(1)),
        channels(last ? x.size(1) : 1),
        h(x.size(2)),
        w(x.size(3)),
        p(y.size(2)),
        q(y.size(3)) {}

  /// Units for each task of a thread.
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

}  // namespace lockstep::on_cpu
