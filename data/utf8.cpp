// Decodes and encodes UTF-8. See utf8.h.
#include "data/utf8.h"

namespace lockstep::data {

Char decode_utf8(std::string_view text, size_t at) {
  const uint8_t first = uint8_t(text[at]);
  if (first < 0x80) return {first, 1, true};
  const int length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  const Char invalid{first, 1, false};
  if (first < 0xc2 || first > 0xf4 || at + size_t(length) > text.size()) return invalid;
  uint32_t code = first & (0xffu >> (length + 1));
  for (int i = 1; i < length; ++i) {
    const uint8_t next = uint8_t(text[at + size_t(i)]);
    if ((next & 0xc0) != 0x80) return invalid;
    code = code << 6 | (next & 0x3f);
  }
  // The smallest code of each length: overlong encodings are invalid.
  constexpr uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return invalid;
  return {code, length, true};
}

size_t utf8_begun(std::string_view text, size_t at) {
  const uint8_t first = uint8_t(text[at]);
  if (first < 0xc2 || first > 0xf4) return 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  // The second byte is restricted: no overlong form, no surrogate, nothing above U+10FFFF.
  const uint8_t least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const uint8_t greatest = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  size_t count = 1;
  while (count < length && at + count < text.size()) {
    const uint8_t next = uint8_t(text[at + count]);
    if (count == 1 ? next < least || next > greatest : (next & 0xc0) != 0x80) break;
    ++count;
  }
  return count;
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) out += char(code);
  else if (code < 0x800) (out += char(0xc0 | code >> 6)) += char(0x80 | (code & 0x3f));
  else if (code < 0x10000)
    ((out += char(0xe0 | code >> 12)) += char(0x80 | (code >> 6 & 0x3f))) += char(0x80 | (code & 0x3f));
  else
    (((out += char(0xf0 | code >> 18)) += char(0x80 | (code >> 12 & 0x3f))) += char(0x80 | (code >> 6 & 0x3f))) +=
        char(0x80 | (code & 0x3f));
}

}  // namespace lockstep::data
