// libFuzzer: any bytes as a safetensors file are read completely or rejected with an Error.
#include <cstdlib>

#include "data/files.h"
#include "data/safetensors.h"
#include "tests/fuzz/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  const lockstep::data::Bytes file{reinterpret_cast<const std::byte*>(data), size};
  try {
    const auto header = lockstep::data::parse_safetensors(file, "fuzz");
    for (const auto& entry : header.entries)
      if (entry.offset < 8 || entry.bytes < 0 || entry.offset + entry.bytes > int64_t(size)) std::abort();
  } catch (const lockstep::Error&) {}
  return 0;
}
