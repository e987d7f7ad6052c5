#pragma once
// The character classes of GPT-2's pre-tokenization, and normalization.
#include <cstdint>
#include <string>
#include <string_view>

#include "data/utf8.h"

namespace lockstep::data {

/// Character classes: \p{L}, \p{N}, \s, and the rest.
enum class CharClass : uint8_t { letter, number, space, other };

/// \p{L}, \p{N} or \s as in Unicode regular expressions; otherwise CharClass::other.
CharClass class_of(uint32_t code);
/// CharClass::other if the character is not valid.
inline CharClass class_of(const Char& c) { return c.valid ? class_of(c.code) : CharClass::other; }
/// The last character of a text of at least one byte; not valid if no UTF-8 character ends there.
Char last_character(std::string_view text);

/// Normalization form C: e followed by U+0301 becomes é. Bytes that are not valid UTF-8 stay as they are.
std::string to_nfc(std::string_view text);

}  // namespace lockstep::data
