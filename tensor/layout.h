#pragma once
// Memory layouts of images. Images have shape (N, C, H, W), and lie in memory row-major or "channels last" (with the
// strides of (N, H, W, C)). Convolution and pooling take both layouts, and results have the layout of the input.
#include "tensor/tensor.h"

namespace lockstep {

/// True if x is stored as (N, H, W, C) and is not also row-major.
inline bool is_channels_last(const Tensor& x) {
  const Shape& s = x.shape();
  const Strides& t = x.strides();
  return !x.is_contiguous() && s.rank() == 4 && t[1] == 1 && t[3] == s[1] && t[2] == s[3] * t[3] && t[0] == s[2] * t[2];
}

/// x itself if it has one of the two layouts, else a row-major copy.
inline Tensor as_images(const Tensor& x) { return is_channels_last(x) ? x : x.contiguous(); }

/// Sizes of a convolution: n images of h x w pixels with c channels per group; weights r x s; k output channels per
/// group; outputs of p x q.
struct ConvSizes {
  int64_t n, c, h, w, k, r, s, p, q, groups;

  /// The sizes of y = conv2d(x, weight).
  static ConvSizes of(const Tensor& x, const Tensor& weight, const Tensor& y, int64_t groups) {
    return {x.size(0),      x.size(1) / groups, x.size(2), x.size(3), y.size(1) / groups,
            weight.size(2), weight.size(3),     y.size(2), y.size(3), groups};
  }
};

}  // namespace lockstep
