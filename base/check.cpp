// fail(), which throws Errors (set a breakpoint here), and the escaping of their text.
#include "base/check.h"

#include <locale>
#include <sstream>

#include "base/printable.h"

namespace lockstep {

TextWriter::TextWriter() : out(*new std::ostringstream) { out.imbue(std::locale::classic()); }
TextWriter::~TextWriter() { delete &out; }
std::string TextWriter::text() const { return static_cast<std::ostringstream&>(out).str(); }

void fail(const std::string& message) { throw Error(printable(message)); }

size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? uint8_t(text[at + i]) : uint8_t(0); };
  const uint8_t b = byte(0), c = byte(1);
  if (b < 0x80) return 1;
  const size_t length = b < 0xc2 || b >= 0xf5 ? 0 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool too_long = (b == 0xe0 && c < 0xa0) || (b == 0xf0 && c < 0x90),
             no_character = (b == 0xed && c >= 0xa0) || (b == 0xf4 && c >= 0x90);
  return too_long || no_character ? 0 : length;
}

/// Escapes control characters other than those in `kept`, and invalid UTF-8.
static std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    const auto byte = uint8_t(text[at]);
    const bool controls = length == 1 ? (byte < 0x20 && kept.find(char(byte)) == kept.npos) || byte == 0x7f
                                      : length == 2 && byte == 0xc2 && uint8_t(text[at + 1]) < 0xa0;
    const std::string_view one = text.substr(at, length == 0 ? 1 : length);
    if (length > 0 && !controls) out += one;
    else
      for (const char c : one)
        for (const char digit : {'\\', 'x', "0123456789abcdef"[uint8_t(c) >> 4], "0123456789abcdef"[uint8_t(c) & 15]})
          out += digit;
    at += one.size();
  }
  return out;
}

std::string printable(std::string_view text) { return escaped(text, "\n\t"); }
std::string one_line(std::string_view text) { return escaped(text, ""); }

}  // namespace lockstep
