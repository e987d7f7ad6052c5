#pragma once
// PNG and JPEG: pictures as u8 tensors (channels, height, width), by libpng and libjpeg-turbo.
#include <string>

#include "data/files.h"
#include "tensor/tensor.h"

namespace lockstep::data {

/// What a picture becomes, whatever its file has. From colours to gray: 0.299 red + 0.587 green + 0.114 blue. Alpha
/// that a file does not have is 255; alpha that is not asked for is left out.
enum class ImageMode { unchanged, gray, gray_alpha, rgb, rgb_alpha };

struct ImageOptions {
  ImageMode mode = ImageMode::unchanged;
  /// Of a picture, checked before there is memory for them: a quarter of a GiB of RGB, as Pillow's MAX_IMAGE_PIXELS.
  int64_t most_pixels = (int64_t(1) << 28) / 3;
};

/// Reads a .png or .jpg file; which it is, its first bytes say. Palettes become colours, transparent colours an alpha
/// channel, 16 bits the nearest of 8, CMYK becomes RGB. The turn that EXIF asks for is left out. Error for damaged and
/// cut files.
Tensor read_image(const std::string& path, const ImageOptions& options = {});
/// The same from memory; `origin` opens the Errors.
Tensor decode_image(Bytes file, const std::string& origin, const ImageOptions& options = {});

/// A u8 picture (channels, height, width) as the bytes of a PNG file: 1 channel is gray, 2 gray and alpha, 3 RGB, 4 RGB
/// and alpha. compression: 0 to 9, as zlib has it.
std::string encode_png(const Tensor& image, int compression = 6);
/// Writes them atomically: see write_atomically().
void save_png(const std::string& path, const Tensor& image, int compression = 6);

/// A u8 picture of 1 channel (gray) or 3 (RGB) as the bytes of a JPEG file (JFIF, colours at half the resolution), as
/// Pillow and torchvision write it. quality: 1 to 100, as libjpeg has it.
std::string encode_jpeg(const Tensor& image, int quality = 75);
/// Writes them atomically.
void save_jpeg(const std::string& path, const Tensor& image, int quality = 75);

}  // namespace lockstep::data
