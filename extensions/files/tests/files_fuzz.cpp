// libFuzzer: any bytes as a .npy, .npz, WAV or CSV file (by their first bytes) are read completely or rejected with an
// Error.
#include <cstdlib>
#include <cstring>

#include "extensions/files/csv.h"
#include "extensions/files/npy.h"
#include "extensions/files/wav.h"
#include "tests/fuzz/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  using namespace lockstep::data;
  const Bytes file{reinterpret_cast<const std::byte*>(data), size};
  try {
    switch (size ? data[0] : 0) {
      case 0x93: parse_npy(file, "fuzz"); break;
      case 'P': parse_npz(file, "fuzz"); break;
      case 'R': parse_wav(file, "fuzz"); break;
      default: parse_csv({reinterpret_cast<const char*>(data), size}, "fuzz", {.empty_is_nan = true});
    }
  } catch (const lockstep::Error& error) {
    if (std::strchr(error.what(), '\n')) std::abort();  // error messages have one line, whatever the file contains
  }
  return 0;
}
