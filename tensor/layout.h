#pragma once
// Memory layouts of images. Images have shape (N, C, H, W), and lie in memory row-major or "channels last" (with the
// strides of (N, H, W, C)). Convolution and pooling take both layouts, and results have the layout of the input.
#include "tensor/kernel_args.h"
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

/// An image tensor of shape s without values, in one of the two layouts, with the dtype and device of `like`.
Tensor empty_images(const Shape& s, const Tensor& like, bool channels_last);
/// Error unless x is floating and (N, C, H, W). op: the operation's name in Errors, here and below.
void check_images(const char* op, const Tensor& x);
/// Error unless an option has two values of at least `least`; name: the option's name.
void check_pair(const char* op, const char* name, const Dims& pair, int64_t least);
/// Checks the options of a pooling; returns the shape of its result for an input of shape x. ceil_mode rounds up, but
/// leaves out a window that would start after the last input.
Shape pool_shape(const char* op, const Shape& x, const PoolArgs& args);

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
