#pragma once
// Internal to data/*.cpp: whole numbers of 1 to 8 bytes, the lowest byte first.
#include <string>

#include "data/files.h"

namespace lockstep::data {

/// The number in bytes `at` to `at + count - 1`; the caller knows that they are there.
inline uint64_t little(Bytes bytes, size_t at, int count) {
  uint64_t value = 0;
  for (int i = count; i-- > 0;) value = value << 8 | uint64_t(bytes[at + size_t(i)]);
  return value;
}

inline void append_little(std::string& out, uint64_t value, int count) {
  for (int i = 0; i < count; ++i, value >>= 8) out += char(value & 0xff);
}

}  // namespace lockstep::data
