#pragma once
// Internal to data/*.cpp: what an Error quotes of a file that may hold anything.
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

/// The beginning of a text, in one line: '?' for what would end it or the message.
inline std::string shown(std::string_view text) {
  std::string line(text.substr(0, 80));
  for (char& c : line)
    if (uint8_t(c) < 0x20 || c == 0x7f) c = '?';
  return text.size() > line.size() ? line + "..." : line;
}

}  // namespace lockstep::data
