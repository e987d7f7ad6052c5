// Decodes and encodes PNG (ISO/IEC 15948) by libpng. See image_pixels.h and image_files.h.
#include <png.h>

#include <csetjmp>
#include <cstring>

#include "data/excerpt.h"
#include "extensions/vision/pictures/image_pixels.h"
#include "tensor/ops.h"

namespace lockstep::data {
namespace {

/// State for libpng's callbacks. Its members have no destructors, because errors longjmp().
struct PngWork {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const std::byte* at = nullptr;  // unread input
  size_t left = 0;
  std::string* out = nullptr;  // receives the output
  char problem[200] = {};
  png_uint_32 width = 0, height = 0;
  int bits = 0, colour = 0, channels = 0;
};

[[noreturn]] void on_png_error(png_structp png, png_const_charp text) {
  auto* work = static_cast<PngWork*>(png_get_error_ptr(png));
  std::strncpy(work->problem, text, sizeof work->problem - 1);
  png_longjmp(png, 1);
}
void on_png_warning(png_structp, png_const_charp) {}

void read_png(png_structp png, png_bytep to, png_size_t count) {
  auto* work = static_cast<PngWork*>(png_get_io_ptr(png));
  if (count > work->left) png_error(png, "the file ends too early (is it truncated?)");
  std::memcpy(to, work->at, count);
  work->at += count;
  work->left -= count;
}

void write_png(png_structp png, png_bytep from, png_size_t count) {
  if (!append_bytes(*static_cast<PngWork*>(png_get_io_ptr(png))->out, from, count)) png_error(png, "out of memory");
}
void flush_png(png_structp) {}

// The stages of decoding and encoding. Each sets the longjmp() target and returns false after an error.

bool read_png_header(PngWork* w) {
  if (setjmp(png_jmpbuf(w->png))) return false;
  png_set_read_fn(w->png, w, read_png);
  // Skip text, profiles and other ancillary chunks: libpng would inflate up to a thousand of them to 8 MB each.
  png_set_keep_unknown_chunks(w->png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_set_crc_action(w->png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
  png_read_info(w->png, w->info);
  png_get_IHDR(w->png, w->info, &w->width, &w->height, &w->bits, &w->colour, nullptr, nullptr, nullptr);
  w->channels = png_get_channels(w->png, w->info);
  return true;
}

bool set_png_form(PngWork* w) {
  if (setjmp(png_jmpbuf(w->png))) return false;
  if (w->colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(w->png);
  if (w->colour == PNG_COLOR_TYPE_GRAY && w->bits < 8) png_set_expand_gray_1_2_4_to_8(w->png);
  if (png_get_valid(w->png, w->info, PNG_INFO_tRNS)) png_set_tRNS_to_alpha(w->png);
  if (w->bits == 16) png_set_scale_16(w->png);
  png_set_interlace_handling(w->png);
  png_read_update_info(w->png, w->info);
  w->channels = png_get_channels(w->png, w->info);
  return png_get_rowbytes(w->png, w->info) == size_t(w->width) * size_t(w->channels);
}

bool read_png_rows(PngWork* w, png_bytepp rows) {
  if (setjmp(png_jmpbuf(w->png))) return false;
  png_read_image(w->png, rows);
  png_read_end(w->png, nullptr);
  return true;
}

bool write_png_rows(PngWork* w, png_bytepp rows, int compression) {
  if (setjmp(png_jmpbuf(w->png))) return false;
  png_set_write_fn(w->png, w, write_png, flush_png);
  png_set_compression_level(w->png, compression);
  png_set_IHDR(w->png, w->info, w->width, w->height, 8, w->colour, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  png_write_info(w->png, w->info);
  png_write_image(w->png, rows);
  png_write_end(w->png, w->info);
  return true;
}

template <bool reads> struct PngFile : PngWork {
  PngFile() {
    const auto create = reads ? png_create_read_struct : png_create_write_struct;
    png = create(PNG_LIBPNG_VER_STRING, static_cast<PngWork*>(this), on_png_error, on_png_warning);
    if (png) info = png_create_info_struct(png);
    LOCKSTEP_CHECK(info, "[png] libpng cannot start: out of memory; free some");
  }
  ~PngFile() { reads ? png_destroy_read_struct(&png, &info, nullptr) : png_destroy_write_struct(&png, &info); }
  PngFile(const PngFile&) = delete;
};

std::vector<png_bytep> rows_in(std::vector<uint8_t>& bytes, int64_t height) {
  std::vector<png_bytep> rows;
  const size_t row = bytes.size() / size_t(height);
  for (int64_t y = 0; y < height; ++y) rows.push_back(bytes.data() + size_t(y) * row);
  return rows;
}

}  // namespace

Pixels decode_png(Bytes file, const std::string& where, const ImageOptions& options) {
  PngFile<true> work;
  work.at = file.data();
  work.left = file.size();
  const auto check = [&](bool fine) {
    LOCKSTEP_CHECK(fine, where, ": ", excerpt(work.problem), "; save the picture again");
  };
  check(read_png_header(&work));
  const int64_t height = work.height, width = work.width;
  check_pixels(where, height, width, options);
  // A byte of the file expands to at most 1032 bytes (deflate). Reject a file that is too short for its pixels.
  const int64_t in_file = work.channels * width * work.bits / 8 * height;
  LOCKSTEP_CHECK(in_file / 1032 <= int64_t(file.size()), where, ": expected a file that can hold ", height, " x ",
                 width, " pixels, got ", file.size(), " bytes (is the header damaged?); save the picture again");
  check(set_png_form(&work));
  Pixels pixels{height, width, work.channels, std::vector<uint8_t>(size_t(height * width * work.channels))};
  auto rows = rows_in(pixels.bytes, height);
  check(read_png_rows(&work, rows.data()));
  return pixels;
}

std::string encode_png(const Tensor& image, int compression) {
  LOCKSTEP_CHECK(compression >= 0 && compression <= 9, "[encode_png] expected a compression from 0 to 9, got ",
                 compression);
  Pixels pixels = pixels_of("encode_png", image, {1, 2, 3, 4}, 1000000);
  auto rows = rows_in(pixels.bytes, pixels.height);
  std::string out;
  PngFile<false> work;
  work.out = &out;
  work.width = png_uint_32(pixels.width);
  work.height = png_uint_32(pixels.height);
  constexpr int colours[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                             PNG_COLOR_TYPE_RGB_ALPHA};
  work.colour = colours[pixels.channels - 1];
  LOCKSTEP_CHECK(write_png_rows(&work, rows.data(), compression), "[encode_png] ", excerpt(work.problem),
                 "; free memory");
  return out;
}

}  // namespace lockstep::data
