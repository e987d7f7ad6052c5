#pragma once
// What is done to one picture: (channels, height, width) on the CPU, u8 or f32 in [0, 1], as torchvision does it to
// tensors. Nothing here draws random numbers; data/pictures/transforms.h does. u8 is computed so that it has the same
// bits on every processor where that is possible (resize), and is rounded or cut as torchvision has it.
#include "tensor/tensor.h"

namespace lockstep::data {

/// Error that begins with [op] unless x is such a picture; row-major.
Tensor picture(const char* op, const Tensor& x);

/// Bilinear; a picture that gets smaller is averaged over as many pixels as fall on one ("antialiased"), and u8 is
/// rounded after each direction, in whole numbers, as Pillow does.
Tensor resize(const Tensor& x, int64_t height, int64_t width);
/// A part of it; what lies outside is `fill`.
Tensor crop(const Tensor& x, int64_t top, int64_t left, int64_t height, int64_t width, double fill = 0);
Tensor flip_horizontally(const Tensor& x);
Tensor flip_vertically(const Tensor& x);

/// out(x, y) = in(a x + b y + c, d x + e y + f), of the middles of pixels measured from the picture's middle; `fill`
/// outside. Nearest pixel, or bilinear.
struct AffineMap {
  double a = 1, b = 0, c = 0, d = 0, e = 1, f = 0;
};
Tensor affine(const Tensor& x, const AffineMap& map, bool bilinear = false, double fill = 0);
/// Counter-clockwise, about its middle.
Tensor rotate(const Tensor& x, double degrees, bool bilinear = false, double fill = 0);

// Colours: 1 or 3 channels.
Tensor grayscale(const Tensor& x, int64_t channels = 1);  ///< 0.2989 red + 0.587 green + 0.114 blue
Tensor adjust_brightness(const Tensor& x, double factor);
Tensor adjust_contrast(const Tensor& x, double factor);
Tensor adjust_saturation(const Tensor& x, double factor);
Tensor adjust_hue(const Tensor& x, double turn);  ///< in [-0.5, 0.5]: of the circle of colours
Tensor adjust_sharpness(const Tensor& x, double factor);
Tensor posterize(const Tensor& x, int bits);         ///< u8: keeps so many of 8 bits
Tensor solarize(const Tensor& x, double threshold);  ///< inverts what is not below; of u8 in 0 .. 255
Tensor autocontrast(const Tensor& x);                ///< each channel stretched to its full range
Tensor equalize(const Tensor& x);                    ///< u8: levels as often as each other, by channel

}  // namespace lockstep::data
