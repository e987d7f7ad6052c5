#pragma once
// Images are (N, C, H, W) in shape. In memory they are row-major, or "channels last": the strides of (N, H, W, C).
// Convolution and pooling take both, and their results have the layout of their input.
#include "tensor/tensor.h"

namespace lockstep {

/// Stored as (N, H, W, C), and not also row-major.
inline bool is_channels_last(const Tensor& x) {
  const Shape& s = x.shape();
  const Strides& t = x.strides();
  return !x.is_contiguous() && s.rank() == 4 && t[1] == 1 && t[3] == s[1] && t[2] == s[3] * t[3] && t[0] == s[2] * t[2];
}

/// x itself when it is in one of the two layouts, else a row-major copy.
inline Tensor as_images(const Tensor& x) { return is_channels_last(x) ? x : x.contiguous(); }

/// Of one convolution: images of c channels a group and h x w pixels, weights r x s, k results a group and p x q
/// places.
struct ConvSizes {
  int64_t n, c, h, w, k, r, s, p, q, groups;

  static ConvSizes of(const Tensor& x, const Tensor& weight, const Tensor& y, int64_t groups) {
    return {x.size(0),      x.size(1) / groups, x.size(2), x.size(3), y.size(1) / groups,
            weight.size(2), weight.size(3),     y.size(2), y.size(3), groups};
  }
};

}  // namespace lockstep
