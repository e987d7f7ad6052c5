// PNG and JPEG files: see image_files.h. png.cpp and jpeg.cpp have the decoders.
#include "extensions/vision/pictures/image_files.h"

#include <algorithm>

#include "data/excerpt.h"
#include "extensions/vision/pictures/image_pixels.h"
#include "tensor/ops.h"

namespace lockstep::data {
namespace {

uint8_t gray_of(const uint8_t* p) { return uint8_t((19595u * p[0] + 38470u * p[1] + 7471u * p[2] + 0x8000u) >> 16); }

/// Converts interleaved rows to planes (channels, height, width) with the channels of `mode`.
Tensor planes_of(const Pixels& from, ImageMode mode) {
  const int own = from.channels, wanted = mode == ImageMode::unchanged ? own : int(mode);
  const int64_t n = from.height * from.width;
  Tensor image = empty({wanted, from.height, from.width}, {.dtype = u8, .device = cpu});
  uint8_t* out = image.data<uint8_t>();
  const int colours = wanted >= 3 ? 3 : 1;
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t* p = from.bytes.data() + i * own;
    for (int c = 0; c < colours; ++c) out[c * n + i] = colours == 1 && own >= 3 ? gray_of(p) : p[own >= 3 ? c : 0];
    if (wanted % 2 == 0) out[colours * n + i] = own % 2 == 0 ? p[own - 1] : 255;
  }
  return image;
}

}  // namespace

void check_pixels(const std::string& where, int64_t height, int64_t width, const ImageOptions& options) {
  LOCKSTEP_CHECK(height >= 1 && width >= 1, where, ": expected a picture of at least 1 x 1 pixels, got ", height, " x ",
                 width, " pixels; save the picture again");
  LOCKSTEP_CHECK(height <= options.max_pixels / width, where, ": expected at most ", options.max_pixels,
                 " pixels, got ", height, " x ", width, "; shrink it, or raise ImageOptions::max_pixels");
}

Pixels pixels_of(const char* op, const Tensor& image, const std::vector<int>& channels, int64_t limit) {
  LOCKSTEP_CHECK(image.defined() && image.device().is_cpu() && image.dtype() == u8 && image.dim() == 3, "[", op,
                 "] expected a u8 picture (channels, height, width) on the cpu, got ",
                 image.defined()
                     ? str(image.dtype(), image.shape(), " on ", image.device(), "; convert, move or reshape it")
                     : "none; pass one");
  const int64_t own = image.size(0), height = image.size(1), width = image.size(2), n = height * width;
  LOCKSTEP_CHECK(std::find(channels.begin(), channels.end(), own) != channels.end(), "[", op, "] expected ",
                 channels.front(), channels.size() > 2 ? " to " : " or ", channels.back(), " channels, got ", own);
  LOCKSTEP_CHECK(height >= 1 && width >= 1 && height <= limit && width <= limit, "[", op, "] expected 1 to ", limit,
                 " pixels in each direction, got ", height, " x ", width,
                 height < 1 || width < 1 ? "; leave empty pictures out" : "; crop or resize it");
  const Tensor full = image.contiguous();
  const uint8_t* from = full.data<uint8_t>();
  Pixels pixels{height, width, int(own), std::vector<uint8_t>(size_t(n * own))};
  for (int64_t c = 0; c < own; ++c)
    for (int64_t i = 0; i < n; ++i) pixels.bytes[size_t(i * own + c)] = from[c * n + i];
  return pixels;
}

bool append_bytes(std::string& out, const uint8_t* from, size_t count) noexcept {
  try {
    out.append(reinterpret_cast<const char*>(from), count);
    return true;
  } catch (...) { return false; }
}

Tensor decode_image(Bytes file, const std::string& origin, const ImageOptions& options) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const bool png = text.starts_with("\x89PNG\r\n\x1a\n"), jpeg = text.starts_with("\xff\xd8\xff");
  LOCKSTEP_CHECK(png || jpeg, "[image] ", origin, ": expected a PNG or JPEG file, got ",
                 text.empty() ? "an empty file" : str("one that starts with \"", excerpt(text.substr(0, 4)), "\""),
                 "; convert it");
  return planes_of(png ? decode_png(file, "[png] " + origin, options) : decode_jpeg(file, "[jpeg] " + origin, options),
                   options.mode);
}

Tensor read_image(const std::string& path, const ImageOptions& options) {
  return parse_file(path, decode_image, options);
}

void save_png(const std::string& path, const Tensor& image, int compression) {
  write_atomically(path, encode_png(image, compression));
}

void save_jpeg(const std::string& path, const Tensor& image, int quality) {
  write_atomically(path, encode_jpeg(image, quality));
}

}  // namespace lockstep::data
