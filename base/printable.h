#pragma once
// Makes text from files and peers safe for terminals: escapes control characters that could move the cursor, change the
// title or make the terminal send input. fail() does this to every Error.
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// Number of bytes of the UTF-8 character at `at`; 0 if there is none.
size_t utf8_length(std::string_view text, size_t at);

/// Replaces control characters (other than newline and tab) and invalid UTF-8 by escapes such as \x1b.
std::string printable(std::string_view text);

/// As printable(), but replaces newlines and tabs, too: a name from a file stays in the line that quotes it.
std::string one_line(std::string_view text);

}  // namespace lockstep
