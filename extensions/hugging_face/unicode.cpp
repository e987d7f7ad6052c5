// Finds character classes. See unicode.h. The tables are our own: utf8proc's depend on the system (Unicode 15.0 in
// Debian 12, 15.1 in Debian 13), so tokens would depend on it as well.
#include "extensions/hugging_face/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace lockstep::data {
namespace {

struct CodeRange {
  uint32_t first, last;
};
#include "extensions/hugging_face/unicode_classes.inc"
constexpr CodeRange spaces[] = {{0x9, 0xd},       {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},
                                {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                {0x205f, 0x205f}, {0x3000, 0x3000}};

template <size_t N> bool contains(const CodeRange (&ranges)[N], uint32_t code) {
  const auto after =
      std::upper_bound(std::begin(ranges), std::end(ranges), code, [](uint32_t c, CodeRange r) { return c < r.first; });
  return after != std::begin(ranges) && code <= std::prev(after)->last;
}

CharClass look_up(uint32_t code) {
  if (contains(letters, code)) return CharClass::letter;
  if (contains(numbers, code)) return CharClass::number;
  return contains(spaces, code) ? CharClass::space : CharClass::other;
}

}  // namespace

CharClass class_of(uint32_t code) {
  static const auto latin = [] {
    std::array<CharClass, 256> table{};
    for (uint32_t c = 0; c < 256; ++c) table[c] = look_up(c);
    return table;
  }();
  return code < 256 ? latin[code] : look_up(code);
}

}  // namespace lockstep::data
