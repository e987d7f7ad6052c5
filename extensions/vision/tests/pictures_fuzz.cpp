// libFuzzer: any bytes as a PNG or JPEG file are read completely or rejected with an Error.
#include <cstdlib>
#include <cstring>

#include "extensions/vision/pictures/image_files.h"
#include "tests/fuzz/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  using namespace lockstep::data;
  const Bytes file{reinterpret_cast<const std::byte*>(data), size};
  try {
    decode_image(file, "fuzz", {.mode = ImageMode::rgb_alpha, .max_pixels = 1 << 16});
  } catch (const lockstep::Error& error) {
    if (std::strchr(error.what(), '\n')) std::abort();  // error messages have one line, whatever the file contains
  }
  return 0;
}
