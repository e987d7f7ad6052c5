#pragma once
// For readers and writers of files: little-endian integers of 1 to 8 bytes.
#include <string>

#include "data/files.h"

namespace lockstep::data {

/// The integer of `count` bytes at offset `at`, which must lie within `bytes`.
inline uint64_t little(Bytes bytes, size_t at, int count) {
  uint64_t value = 0;
  for (int i = count; i-- > 0;) value = value << 8 | uint64_t(bytes[at + size_t(i)]);
  return value;
}

/// Appends the lowest `count` bytes of `value`.
inline void append_little(std::string& out, uint64_t value, int count) {
  for (int i = 0; i < count; ++i, value >>= 8) out += char(value & 0xff);
}

}  // namespace lockstep::data
