// Finds character classes, and normalizes to form C (Unicode Standard Annex 15): characters are decomposed, combining
// marks are put in order, and the result is composed. See unicode.h. The tables are our own: utf8proc's depend on the
// system (Unicode 15.0 in Debian 12, 15.1 in Debian 13), so tokens would depend on it as well.
#include "extensions/hugging_face/unicode.h"

#include <algorithm>
#include <array>
#include <vector>

#include "extensions/hugging_face/merges.h"

namespace lockstep::data {
namespace {

struct CodeRange {
  uint32_t first, last;
};
struct CombiningClass {
  uint32_t first, last;
  uint8_t value;
};
struct Decomposition {
  uint32_t composed, first, second;
};
#include "extensions/hugging_face/unicode_classes.inc"
#include "extensions/hugging_face/unicode_compositions.inc"
constexpr CodeRange spaces[] = {{0x9, 0xd},       {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},
                                {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                {0x205f, 0x205f}, {0x3000, 0x3000}};

/// The range in a sorted table that contains `code`, or nullptr.
const auto* range_of(const auto& ranges, uint32_t code) {
  const auto* const after = std::ranges::upper_bound(ranges, code, {}, [](const auto& range) { return range.first; });
  return after != std::begin(ranges) && code <= std::prev(after)->last ? std::prev(after) : nullptr;
}

CharClass look_up(uint32_t code) {
  if (range_of(letters, code)) return CharClass::letter;
  if (range_of(numbers, code)) return CharClass::number;
  return range_of(spaces, code) ? CharClass::space : CharClass::other;
}

constexpr uint32_t kHangul = 0xac00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11a7;
constexpr uint32_t kLeads = 19, kVowels = 21, kTails = 28;

uint8_t combining_class(uint32_t code) {
  const CombiningClass* const range = range_of(combining, code);
  return range ? range->value : 0;
}

const Decomposition* find_in(const auto& table, uint32_t code) {
  const auto* const found = std::ranges::lower_bound(table, code, {}, &Decomposition::composed);
  return found != std::end(table) && found->composed == code ? found : nullptr;
}

/// Decomposes a character by one step. False if it has no decomposition. second is 0 if there is only one part.
bool take_apart(uint32_t code, uint32_t& first, uint32_t& second) {
  if (code >= kHangul && code < kHangul + kLeads * kVowels * kTails) {
    const uint32_t index = code - kHangul, tail = index % kTails;
    first = tail ? code - tail : kLead + index / (kVowels * kTails);
    second = tail ? kTail + tail : kVowel + index / kTails % kVowels;
    return true;
  }
  second = 0;
  if (code - 0xf900 < std::size(ideographs)) return (first = ideographs[code - 0xf900]) != 0;
  if (code - 0x2f800 < std::size(more_ideographs)) return (first = more_ideographs[code - 0x2f800]) != 0;
  const Decomposition* row = find_in(pairs, code);
  if (!row) row = find_in(one_way, code);
  if (row) first = row->first, second = row->second;
  return row;
}

/// The composition of two characters, or 0.
uint32_t put_together(uint32_t first, uint32_t second) {
  if (first - kLead < kLeads && second - kVowel < kVowels)
    return kHangul + ((first - kLead) * kVowels + second - kVowel) * kTails;
  if (first - kHangul < kLeads * kVowels * kTails && (first - kHangul) % kTails == 0 && second > kTail &&
      second < kTail + kTails)
    return first + second - kTail;
  static const auto table = [] {
    PairMap made;
    for (const Decomposition& row : pairs) made.add(row.first, row.second, int32_t(row.composed));
    return made;
  }();
  const int32_t composed = table.find(first, second);
  return composed < 0 ? 0 : uint32_t(composed);
}

struct Part {
  uint32_t code;
  uint8_t combining;
};

void append_parts(uint32_t code, std::vector<Part>& parts) {
  if (code < 0xc0) return parts.push_back({code, 0});
  uint32_t first, second;
  if (!take_apart(code, first, second)) return parts.push_back({code, combining_class(code)});
  append_parts(first, parts);
  if (second) append_parts(second, parts);
}

/// Sorts the combining marks of each character, composes, appends the result to `out` and clears `parts`.
void write_composed(std::vector<Part>& parts, std::string& out) {
  for (auto mark = parts.begin(); mark != parts.end();) {
    const auto end = std::ranges::find(mark, parts.end(), 0, &Part::combining);
    std::ranges::stable_sort(mark, end, {}, &Part::combining);
    mark = end == parts.end() ? end : end + 1;
  }
  // A part composes with the last starter (class 0), unless a part kept between them has the same or a higher class.
  size_t starter = parts.size(), kept = 0;
  int before = -1;  // class of the last part kept after the starter, or -1
  for (const Part part : parts) {
    if (starter < kept && before < part.combining) {
      if (const uint32_t composed = put_together(parts[starter].code, part.code)) {
        parts[starter].code = composed;
        continue;
      }
    }
    before = part.combining;
    if (part.combining == 0) starter = kept, before = -1;
    parts[kept++] = part;
  }
  for (size_t i = 0; i < kept; ++i) append_utf8(out, parts[i].code);
  parts.clear();
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

Char last_character(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && text.size() - start < 4 && (uint8_t(text[start]) & 0xc0) == 0x80) --start;
  Char c = decode_utf8(text, start);
  c.valid = c.valid && start + size_t(c.bytes) == text.size();
  return c;
}

std::string to_nfc(std::string_view text) {
  std::string out;
  std::vector<Part> parts;
  for (size_t at = 0; at < text.size();) {
    const Char c = decode_utf8(text, at);
    // A character below U+0300 is no combining mark, so the characters before it cannot change any more: write those.
    if (!c.valid || c.code < 0x300) write_composed(parts, out);
    if (!c.valid) out += text[at];
    else append_parts(c.code, parts);
    at += size_t(c.bytes);
  }
  write_composed(parts, out);
  return out;
}

}  // namespace lockstep::data
