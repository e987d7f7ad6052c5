// libFuzzer: any bytes as an IDX file, plain or gzip, are read completely or rejected with an Error. The limit is low,
// so that a decompression bomb would exceed it.
#include "data/images.h"
#include "tests/fuzz/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  try {
    lockstep::data::parse_idx({reinterpret_cast<const std::byte*>(data), size}, "fuzz", 1 << 20);
  } catch (const lockstep::Error&) {}
  return 0;
}
