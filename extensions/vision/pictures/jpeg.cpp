// Decodes and encodes JPEG (ITU-T T.81) with libjpeg-turbo. See image_pixels.h and image_files.h.
#include <csetjmp>
#include <cstdio>
// jpeglib.h needs FILE and size_t. jerror.h needs the version that jpeglib.h defines: its error numbers depend on it.
#include <jpeglib.h>

#include <jerror.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "data/excerpt.h"
#include "extensions/vision/pictures/image_pixels.h"

namespace lockstep::data {
namespace {

/// State for libjpeg's callbacks. Its members have no destructors, because an error leaves by longjmp(), which calls
/// none.
struct JpegErrors {
  jpeg_error_mgr errors{};
  jmp_buf back;
  char problem[JMSG_LENGTH_MAX] = {};
};
struct JpegRead : JpegErrors {
  jpeg_decompress_struct info{};
  jpeg_progress_mgr progress{};
  int max_scans = 0;
  ~JpegRead() { jpeg_destroy_decompress(&info); }  // a no-op if `info` is still zero
};
struct JpegWrite : JpegErrors {
  jpeg_compress_struct info{};
  jpeg_destination_mgr to{};
  JOCTET part[1 << 14];  // output buffer, appended to `out` when full
  std::string* out = nullptr;
  ~JpegWrite() { jpeg_destroy_compress(&info); }
};

/// The Work, a JpegRead or JpegWrite, that a callback belongs to.
template <class Work> Work* work_of(const auto* info) {
  return static_cast<Work*>(static_cast<JpegErrors*>(info->client_data));
}

constexpr long max_megabytes = 512;  // memory limit for libjpeg, which buffers images with several scans

[[noreturn]] void on_jpeg_error(j_common_ptr info) {
  auto* work = static_cast<JpegErrors*>(info->client_data);
  if (info->err->msg_code == JERR_NO_BACKING_STORE)
    std::snprintf(work->problem, sizeof work->problem, "its scans need more than %ld MB of memory", max_megabytes);
  else info->err->format_message(info, work->problem);
  std::longjmp(work->back, 1);
}

/// Turns libjpeg's warnings about damaged data into errors. Warnings of oddities that lose no data are ignored.
void on_jpeg_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA: return;
    default: on_jpeg_error(info);
  }
}
void on_jpeg_output(j_common_ptr) {}

/// Limits the scans: a small file may request so many passes over a large image that decoding takes forever.
void on_jpeg_progress(j_common_ptr info) {
  auto* work = work_of<JpegRead>(info);
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= work->max_scans) return;
  std::snprintf(work->problem, sizeof work->problem, "more than %d scans", work->max_scans);
  std::longjmp(work->back, 1);
}

// The output goes through a small buffer: libjpeg's own memory destination leaks if an error occurs while it grows.

void begin_part(j_compress_ptr info) {
  auto* work = work_of<JpegWrite>(info);
  work->to.next_output_byte = work->part;
  work->to.free_in_buffer = sizeof work->part;
}
void append_part(j_compress_ptr info, size_t left) {
  auto* work = work_of<JpegWrite>(info);
  if (append_bytes(*work->out, work->part, sizeof work->part - left)) return;
  std::strncpy(work->problem, "out of memory", sizeof work->problem - 1);
  std::longjmp(work->back, 1);
}
::boolean next_part(j_compress_ptr info) {
  append_part(info, 0);  // the whole buffer: free_in_buffer is not up to date here
  begin_part(info);
  return TRUE;
}
void end_parts(j_compress_ptr info) { append_part(info, info->dest->free_in_buffer); }

/// Installs the callbacks. Call it before jpeg_create_...(), which may fail, too.
template <class Info> void listen_to_jpeg(Info& info, JpegErrors* w) {
  info.err = jpeg_std_error(&w->errors);
  w->errors.error_exit = on_jpeg_error;
  w->errors.emit_message = on_jpeg_message;
  w->errors.output_message = on_jpeg_output;
  info.client_data = w;
}

// The stages of decoding and encoding. Each sets the longjmp() target and returns false after an error.

bool read_jpeg_header(JpegRead* w, const unsigned char* data, unsigned long size) {
  if (setjmp(w->back)) return false;
  listen_to_jpeg(w->info, w);
  jpeg_create_decompress(&w->info);
  w->progress.progress_monitor = on_jpeg_progress;
  w->info.progress = &w->progress;
  w->info.mem->max_memory_to_use = max_megabytes << 20;
  jpeg_mem_src(&w->info, data, size);
  jpeg_read_header(&w->info, TRUE);
  return true;
}

bool start_jpeg(JpegRead* w) {
  if (setjmp(w->back)) return false;
  jpeg_start_decompress(&w->info);
  return true;
}

bool read_jpeg_rows(JpegRead* w, unsigned char* out) {
  if (setjmp(w->back)) return false;
  const size_t row = size_t(w->info.output_width) * size_t(w->info.output_components);
  while (w->info.output_scanline < w->info.output_height) {
    JSAMPROW to = out + size_t(w->info.output_scanline) * row;
    jpeg_read_scanlines(&w->info, &to, 1);
  }
  jpeg_finish_decompress(&w->info);
  return true;
}

bool write_jpeg(JpegWrite* w, const Pixels& pixels, int quality) {
  if (setjmp(w->back)) return false;
  listen_to_jpeg(w->info, w);
  jpeg_create_compress(&w->info);
  w->to.init_destination = begin_part;
  w->to.empty_output_buffer = next_part;
  w->to.term_destination = end_parts;
  w->info.dest = &w->to;
  w->info.image_width = JDIMENSION(pixels.width);
  w->info.image_height = JDIMENSION(pixels.height);
  w->info.input_components = pixels.channels;
  w->info.in_color_space = pixels.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&w->info);
  jpeg_set_quality(&w->info, quality, TRUE);
  jpeg_start_compress(&w->info, TRUE);
  const size_t row = size_t(pixels.width) * size_t(pixels.channels);
  while (w->info.next_scanline < w->info.image_height) {
    // libjpeg's interface is not const, but it only reads the rows
    JSAMPROW from = const_cast<JSAMPROW>(pixels.bytes.data() + size_t(w->info.next_scanline) * row);
    jpeg_write_scanlines(&w->info, &from, 1);
  }
  jpeg_finish_compress(&w->info);
  return true;
}

/// CMYK to RGB. Adobe's programs store inverted values.
std::vector<uint8_t> rgb_of_inks(const std::vector<uint8_t>& inks, bool inverted) {
  std::vector<uint8_t> rgb;
  rgb.reserve(inks.size() / 4 * 3);
  for (size_t i = 0; i < inks.size(); i += 4) {
    const auto light = [&](size_t c) { return unsigned(inverted ? inks[i + c] : 255 - inks[i + c]); };
    for (size_t c = 0; c < 3; ++c) rgb.push_back(uint8_t((light(c) * light(3) + 127) / 255));
  }
  return rgb;
}

}  // namespace

Pixels decode_jpeg(Bytes file, const std::string& where, const ImageOptions& options) {
  JpegRead work;
  const auto check = [&](bool fine) {
    LOCKSTEP_CHECK(fine, where, ": ", excerpt(work.problem), "; save the picture again");
  };
  check(read_jpeg_header(&work, reinterpret_cast<const unsigned char*>(file.data()), file.size()));
  auto& info = work.info;
  check_pixels(where, info.image_height, info.image_width, options);
  // Huffman coding takes at least one bit per 8 x 8 block.
  LOCKSTEP_CHECK(info.arith_code || int64_t(info.image_height) * info.image_width / 512 <= int64_t(file.size()), where,
                 ": expected a file that can hold ", info.image_height, " x ", info.image_width, " pixels, got ",
                 file.size(), " bytes (is it truncated?); copy or download it again");
  constexpr int64_t max_passed = int64_t(1) << 31;  // limit on pixels x scans: a few seconds of work
  work.max_scans = int(std::min<int64_t>(500, max_passed / (int64_t(info.image_height) * info.image_width) + 1));
  const int own = info.num_components;
  LOCKSTEP_CHECK(own == 1 || own == 3 || own == 4, where, ": expected 1, 3 or 4 colours, got ", own,
                 "; save the picture as gray, RGB or CMYK");
  const bool only_light = info.jpeg_color_space == JCS_YCbCr && options.mode == ImageMode::gray;
  info.out_color_space = own == 1 || only_light ? JCS_GRAYSCALE : own == 3 ? JCS_RGB : JCS_CMYK;
  check(start_jpeg(&work));
  Pixels pixels{int64_t(info.output_height), int64_t(info.output_width), info.output_components, {}};
  pixels.bytes.resize(size_t(pixels.height * pixels.width) * size_t(pixels.channels));
  check(read_jpeg_rows(&work, pixels.bytes.data()));
  if (own == 4) {
    pixels.bytes = rgb_of_inks(pixels.bytes, info.saw_Adobe_marker);
    pixels.channels = 3;
  }
  return pixels;
}

std::string encode_jpeg(const Tensor& image, int quality) {
  LOCKSTEP_CHECK(quality >= 1 && quality <= 100, "[encode_jpeg] expected a quality from 1 to 100, got ", quality);
  const Pixels pixels = pixels_of("encode_jpeg", image, {1, 3}, JPEG_MAX_DIMENSION);
  std::string out;
  JpegWrite work;
  work.out = &out;
  LOCKSTEP_CHECK(write_jpeg(&work, pixels, quality), "[encode_jpeg] ", excerpt(work.problem),
                 "; try a smaller picture, or free memory");
  return out;
}

}  // namespace lockstep::data
