// Tokens that are cut out of a text: see added_tokens.h.
#include "data/added_tokens.h"

#include <algorithm>

#include "data/unicode.h"
#include "tensor/check.h"

namespace lockstep::data {
namespace {

bool space_at(std::string_view text, size_t at, size_t& bytes) {
  const Char c = decode_utf8(text, at);
  bytes = size_t(c.bytes);
  return c.valid && class_of(c.code) == CharClass::space;
}

/// Where the white space that ends at `end` begins, not before `least`.
size_t spaces_before(std::string_view text, size_t end, size_t least) {
  while (end > least) {
    size_t start = end - 1, bytes;
    while (start > least && end - start < 4 && (uint8_t(text[start]) & 0xc0) == 0x80) --start;
    if (!space_at(text, start, bytes) || start + bytes != end) break;
    end = start;
  }
  return end;
}

size_t spaces_after(std::string_view text, size_t at) {
  for (size_t bytes; at < text.size() && space_at(text, at, bytes);) at += bytes;
  return at;
}

}  // namespace

void AddedTokens::finish(const std::string& where) {
  std::sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.text < b.text; });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& text = tokens_[i].text;
    LOCKSTEP_CHECK(!text.empty() && text.size() <= most_bytes, where, ": expected added tokens of 1 to ", most_bytes,
                   " bytes, got ", text.size());
    LOCKSTEP_CHECK(i == 0 || text != tokens_[i - 1].text, where, ": added token \"", text, "\" appears twice");
    starts_[uint8_t(text[0])] = true;
  }
}

/// Narrows the sorted list by one byte after the other.
const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at) const {
  const AddedToken *found = nullptr, *first = tokens_.data(), *last = first + tokens_.size();
  for (size_t depth = 0; first != last; ++depth) {
    if (first->text.size() == depth) found = first++;
    if (at + depth >= text.size()) break;
    const auto byte = [&](const AddedToken& token) { return uint8_t(token.text[depth]); };
    const uint8_t wanted = uint8_t(text[at + depth]);
    first = std::partition_point(first, last, [&](const AddedToken& token) { return byte(token) < wanted; });
    last = std::partition_point(first, last, [&](const AddedToken& token) { return byte(token) == wanted; });
  }
  return found;
}

bool AddedTokens::takes_spaces() const {
  for (const AddedToken& token : tokens_)
    if (token.right || token.text.find_first_of(" \n") != token.text.npos) return true;
  return false;
}

void AddedTokens::cut(std::string_view text, bool parse_special,
                      const std::function<void(std::string_view piece, int32_t id)>& fn) const {
  size_t done = 0, spaces_end = 0;
  for (size_t i = tokens_.empty() ? text.size() : 0; i < text.size();) {
    const AddedToken* token = starts_[uint8_t(text[i])] ? longest_at(text, i) : nullptr;
    if (!token) {
      ++i;
      continue;
    }
    size_t start = i, stop = i += token->text.size();
    if (token->special && !parse_special) continue;
    // A token may be a space itself: no space is looked at again.
    if (token->left && done < start) start = spaces_before(text, start, done);
    if (token->right) stop = spaces_end = stop < spaces_end ? spaces_end : spaces_after(text, stop);
    if (done < start) fn(text.substr(done, start - done), -1);
    fn({}, token->id);
    done = stop;
  }
  if (done < text.size()) fn(text.substr(done), -1);
}

}  // namespace lockstep::data
