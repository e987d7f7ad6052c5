#pragma once
// Text of files and peers, for terminals: what would move a cursor, change a title or answer for the user is written
// out. fail() does it with every Error.
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// Bytes of the UTF-8 character that begins here; 0 if none does.
size_t utf8_length(std::string_view text, size_t at);

/// Control characters but ends of lines and tabulators, and what is not UTF-8, as \x1b.
std::string printable(std::string_view text);

}  // namespace lockstep
