#pragma once
// Deterministic image operations, as torchvision does them on tensors. An image is (channels, height, width) on the
// CPU, u8 or f32 in [0, 1]. Random operations are in transforms.h. u8 results are rounded or truncated as
// in torchvision; resize() gives the same bits on every processor.
#include "tensor/ops.h"

namespace lockstep::data {

/// Returns x, or a contiguous copy of x. Error, beginning with [op], unless x is an image (see above).
Tensor picture(const char* op, const Tensor& x);
/// A new picture like `in`, which comes from picture(). fn(pixels of `in`, pixels of the result) fills it.
template <class Fn> Tensor mapped(const Tensor& in, const Fn& fn) {
  Tensor out = empty_like(in);
  dispatch<uint8_t, float>(in.dtype(), "mapped",
                           [&]<class T> { fn(static_cast<const T*>(in.data<T>()), out.data<T>()); });
  return out;
}

/// Bilinear resize with antialiasing when shrinking (a triangle filter over all covered pixels). u8 uses fixed-point
/// arithmetic and is rounded after each direction, as in Pillow.
Tensor resize(const Tensor& x, int64_t height, int64_t width);
/// A rectangle of x. Pixels outside x are `fill`.
Tensor crop(const Tensor& x, int64_t top, int64_t left, int64_t height, int64_t width, double fill = 0);
/// Mirrors left and right.
Tensor flip_horizontally(const Tensor& x);
/// Mirrors top and bottom.
Tensor flip_vertically(const Tensor& x);

/// A map from output to input: out(x, y) = in(a x + b y + c, d x + e y + f). Coordinates are those of pixel centers,
/// relative to the image center.
struct AffineMap {
  double a = 1, b = 0, c = 0, d = 0, e = 1, f = 0;
};
/// Applies the map, by the nearest pixel or bilinearly. Pixels outside x are `fill`.
Tensor affine(const Tensor& x, const AffineMap& map, bool bilinear = false, double fill = 0);
/// Rotates counter-clockwise about the center.
Tensor rotate(const Tensor& x, double degrees, bool bilinear = false, double fill = 0);

/// Converts to gray: 0.2989 red + 0.587 green + 0.114 blue. grayscale(), autocontrast() and adjust_...() take images of
/// 1 or 3 channels.
Tensor grayscale(const Tensor& x, int64_t channels = 1);
/// factor * x, clamped. Factor 0 gives black, 1 gives x.
Tensor adjust_brightness(const Tensor& x, double factor);
/// Blends x with its mean gray. Factor 0 gives uniform gray, 1 gives x.
Tensor adjust_contrast(const Tensor& x, double factor);
/// Blends x with the gray image of x. Factor 0 gives that gray image, 1 gives x.
Tensor adjust_saturation(const Tensor& x, double factor);
/// Shifts the hue by `shift` of the color circle, in [-0.5, 0.5].
Tensor adjust_hue(const Tensor& x, double shift);
/// Blends x with a smoothed x (3 x 3 filter, center weight 5 of 13). Factor 0 gives the smoothed image, 1 gives x.
Tensor adjust_sharpness(const Tensor& x, double factor);
Tensor posterize(const Tensor& x, int bits);         ///< u8: keeps the highest `bits` bits
Tensor solarize(const Tensor& x, double threshold);  ///< inverts values >= threshold (0 .. 255 for u8)
Tensor autocontrast(const Tensor& x);                ///< stretches each channel to the full range
Tensor equalize(const Tensor& x);                    ///< u8: equalizes the histogram of each channel

}  // namespace lockstep::data
