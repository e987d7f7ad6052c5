#pragma once
// PNG and JPEG files as u8 tensors (channels, height, width), read and written by libpng and libjpeg-turbo.
#include <string>

#include "data/files.h"
#include "tensor/tensor.h"

namespace lockstep::data {

/// The channels of a decoded image, whatever the file has; as a number, how many there are. Color to gray: 0.299 red +
/// 0.587 green + 0.114 blue. Missing alpha becomes 255; unwanted alpha is dropped.
enum class ImageMode { unchanged, gray, gray_alpha, rgb, rgb_alpha };

/// Options of read_image().
struct ImageOptions {
  ImageMode mode = ImageMode::unchanged;  ///< channels of the result
  /// Limit on height * width, checked before memory is allocated: a quarter of a GiB of RGB, as Pillow's
  /// MAX_IMAGE_PIXELS.
  int64_t max_pixels = (int64_t(1) << 28) / 3;
};

/// Reads a PNG or JPEG file (recognized by its first bytes). Palettes become colors, transparent colors an alpha
/// channel, 16 bits are rounded to 8, CMYK becomes RGB. The EXIF orientation is ignored. Error for damaged or truncated
/// files.
Tensor read_image(const std::string& path, const ImageOptions& options = {});
/// read_image() of a file in memory. Errors begin with `origin`.
Tensor decode_image(Bytes file, const std::string& origin, const ImageOptions& options = {});

/// Encodes a u8 image (channels, height, width) as PNG: 1 channel is gray, 2 gray and alpha, 3 RGB, 4 RGB and alpha.
/// compression: zlib's level, 0 to 9.
std::string encode_png(const Tensor& image, int compression = 6);
/// encode_png() to a file, with write_atomically().
void save_png(const std::string& path, const Tensor& image, int compression = 6);

/// Encodes a u8 image of 1 channel (gray) or 3 (RGB) as JPEG (JFIF, chroma at half the resolution), as Pillow and
/// torchvision do. quality: 1 to 100, as in libjpeg.
std::string encode_jpeg(const Tensor& image, int quality = 75);
/// encode_jpeg() to a file, with write_atomically().
void save_jpeg(const std::string& path, const Tensor& image, int quality = 75);

}  // namespace lockstep::data
