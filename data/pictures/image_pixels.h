#pragma once
// Internal to data/pictures: decoders and encoders of pictures, each behind the same few calls. They are C libraries
// that leave an error by longjmp(): each stage is a function of its own without anything that has a destructor.
#include <cstdint>
#include <string>
#include <vector>

#include "data/pictures/image_files.h"

namespace lockstep::data {

/// Rows of interleaved channels: 1 gray, 2 gray and alpha, 3 RGB, 4 RGB and alpha.
struct Pixels {
  int64_t height = 0, width = 0;
  int channels = 0;
  std::vector<uint8_t> bytes;
};

Pixels decode_png(Bytes file, const std::string& where, const ImageOptions& options);
Pixels decode_jpeg(Bytes file, const std::string& where, const ImageOptions& options);
/// Error unless a picture has pixels, and not more than options allow.
void check_pixels(const std::string& where, int64_t height, int64_t width, const ImageOptions& options);
/// A u8 picture (channels, height, width) as rows; `channels` says which numbers of them `op` takes, `most` how many
/// pixels in each direction.
Pixels pixels_of(const char* op, const Tensor& image, const std::vector<int>& channels, int64_t most);
/// For callbacks of the libraries, through which nothing may be thrown: false when there is no memory.
bool append_bytes(std::string& out, const uint8_t* from, size_t count) noexcept;
/// What a library said, in one line.
std::string library_message(const char* text);

}  // namespace lockstep::data
