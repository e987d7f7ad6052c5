// Normalization form C (Unicode Standard Annex 15): see nfc.h. Characters are decomposed, combining marks are put in
// order, and the result is composed. We do not use utf8proc, for the reason in unicode.cpp.
#include "extensions/hugging_face/nfc.h"

#include <algorithm>
#include <vector>

#include "data/utf8.h"
#include "extensions/hugging_face/merges.h"

namespace lockstep::data {
namespace {

struct Decomposition {
  uint32_t composed, first, second;
};
struct CombiningClass {
  uint32_t first, last;
  uint8_t value;
};
#include "extensions/hugging_face/unicode_compositions.inc"

constexpr uint32_t kHangul = 0xac00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11a7;
constexpr uint32_t kLeads = 19, kVowels = 21, kTails = 28;

uint8_t combining_class(uint32_t code) {
  const auto after = std::upper_bound(std::begin(combining), std::end(combining), code,
                                      [](uint32_t c, const CombiningClass& range) { return c < range.first; });
  return after != std::begin(combining) && code <= std::prev(after)->last ? std::prev(after)->value : 0;
}

const Decomposition* find_in(const auto& table, uint32_t code) {
  const auto found = std::lower_bound(std::begin(table), std::end(table), code,
                                      [](const Decomposition& row, uint32_t c) { return row.composed < c; });
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
    if (mark->combining == 0) {
      ++mark;
      continue;
    }
    const auto end = std::find_if(mark, parts.end(), [](const Part& p) { return p.combining == 0; });
    std::stable_sort(mark, end, [](const Part& a, const Part& b) { return a.combining < b.combining; });
    mark = end;
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
