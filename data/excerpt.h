#pragma once
// Quotes untrusted content of a file in an Error.
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

/// The first 80 bytes of a text on one line: control characters become '?'.
inline std::string excerpt(std::string_view text) {
  std::string line(text.substr(0, 80));
  for (char& c : line)
    if (uint8_t(c) < 0x20 || c == 0x7f) c = '?';
  return text.size() > line.size() ? line + "..." : line;
}

}  // namespace lockstep::data
