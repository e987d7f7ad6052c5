#pragma once
// Decodes and writes UTF-8. A text may contain any bytes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

/// A decoded character.
struct Char {
  uint32_t code = 0;
  int bytes = 1;
  bool valid = true;  ///< true: valid UTF-8; false: invalid, and `code` is the byte itself
};

/// Decodes the character that starts at text[at].
Char decode_utf8(std::string_view text, size_t at);
/// For invalid UTF-8 at text[at]: the number of bytes there that begin a character but do not complete it, or 0. If the
/// text ends after them, more text may complete the character; otherwise they are to be replaced by one U+FFFD.
size_t utf8_begun(std::string_view text, size_t at);
/// Appends a code point as UTF-8.
void append_utf8(std::string& out, uint32_t code);

}  // namespace lockstep::data
