#pragma once
// Internal to this folder: image decoders and encoders behind the same few calls. The C libraries report errors
// by longjmp(), so each stage is a function of its own in which nothing has a destructor.
#include <cstdint>
#include <string>
#include <vector>

#include "extensions/vision/pictures/image_files.h"

namespace lockstep::data {

/// An image as rows of interleaved channels: 1 gray, 2 gray and alpha, 3 RGB, 4 RGB and alpha.
struct Pixels {
  int64_t height = 0, width = 0;
  int channels = 0;
  std::vector<uint8_t> bytes;
};

/// Decodes a PNG file. Errors begin with `where`.
Pixels decode_png(Bytes file, const std::string& where, const ImageOptions& options);
/// Decodes a JPEG file. Errors begin with `where`.
Pixels decode_jpeg(Bytes file, const std::string& where, const ImageOptions& options);
/// Error if an image has no pixels, or more than options.max_pixels.
void check_pixels(const std::string& where, int64_t height, int64_t width, const ImageOptions& options);
/// Converts a u8 image (channels, height, width) to rows. Error unless its channel count is in `channels` and each side
/// has at most `limit` pixels.
Pixels pixels_of(const char* op, const Tensor& image, const std::vector<int>& channels, int64_t limit);
/// Appends to `out`. False if out of memory: exceptions must not pass through the libraries' C callbacks.
bool append_bytes(std::string& out, const uint8_t* from, size_t count) noexcept;

}  // namespace lockstep::data
