#pragma once
// UTF-8 and the three classes of characters that GPT-2's pre-tokenisation knows.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

enum class CharClass : uint8_t { letter, number, space, other };

struct Char {
  uint32_t code = 0;
  int bytes = 1;
  bool valid = true;  ///< false: a byte that is not part of UTF-8; it stands for itself
};

/// The character that starts at text[at].
Char decode_utf8(std::string_view text, size_t at);
/// Where text[at] is no character: how many bytes from there on begin one, 0 when none does. Those that reach the end
/// of the text may be continued; elsewhere they are what one U+FFFD stands for.
size_t utf8_begun(std::string_view text, size_t at);
void append_utf8(std::string& out, uint32_t code);
/// \p{L}, \p{N}, \s of regular expressions with Unicode; else other.
CharClass class_of(uint32_t code);

}  // namespace lockstep::data
