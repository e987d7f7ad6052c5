// Finds added tokens in a text by an Aho-Corasick automaton. See added_tokens.h.
#include "extensions/hugging_face/added_tokens.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "extensions/hugging_face/unicode.h"

namespace lockstep::data {
namespace {

/// Returns the position at which the white space before `end` begins; not below `least`.
size_t spaces_before(std::string_view text, size_t end, size_t least) {
  while (end > least) {
    const Char c = last_character(text.substr(least, end - least));
    if (class_of(c) != CharClass::space) break;
    end -= size_t(c.bytes);
  }
  return end;
}

size_t spaces_after(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Char c = decode_utf8(text, at);
    if (class_of(c) != CharClass::space) break;
    at += size_t(c.bytes);
  }
  return at;
}

}  // namespace

void AddedTokens::finish(const std::string& where) {
  std::ranges::sort(tokens_, {}, &AddedToken::text);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& text = tokens_[i].text;
    LOCKSTEP_CHECK(!text.empty() && text.size() <= max_bytes, where, ": expected added tokens of 1 to ", max_bytes,
                   " bytes, got ", text.size(), "; correct the file");
    LOCKSTEP_CHECK(i == 0 || text != tokens_[i - 1].text, where, ": added token \"", text,
                   "\" appears twice; keep one of them");
    ends_[uint8_t(text.back())] = true;
  }
  make_nodes(where);
}

/// Builds the nodes breadth-first, so that a node's suffix link points to a node that is complete already.
void AddedTokens::make_nodes(const std::string& where) {
  std::vector<uint32_t> longer(tokens_.size()), at(tokens_.size());  // longer: tokens of more than `depth` bytes
  std::iota(longer.begin(), longer.end(), 0);
  for (size_t depth = 0; !longer.empty(); ++depth) {
    for (const uint32_t token : longer) {
      const std::string& text = tokens_[token].text;
      const uint8_t byte = uint8_t(text.rbegin()[ptrdiff_t(depth)]);
      int32_t next = children_.find(at[token], byte);
      if (next < 0) {
        LOCKSTEP_CHECK(nodes_.size() < max_nodes, where, ": expected added tokens of at most ", max_nodes,
                       " bytes together, with endings that they share counted once; leave some out");
        next = int32_t(nodes_.size());
        const uint32_t shorter = at[token] == 0 ? 0 : step(nodes_[at[token]].shorter, byte);
        nodes_.push_back({shorter, nodes_[shorter].token});
        children_.add(at[token], byte, next);
      }
      at[token] = uint32_t(next);
      if (text.size() == depth + 1) nodes_[at[token]].token = int32_t(token);
    }
    std::erase_if(longer, [&](uint32_t token) { return tokens_[token].text.size() == depth + 1; });
  }
}

uint32_t AddedTokens::step(uint32_t at, uint8_t byte) const {
  for (;; at = nodes_[at].shorter) {
    if (const int32_t next = children_.find(at, byte); next >= 0) return uint32_t(next);
    if (at == 0) return 0;
  }
}

std::vector<AddedTokens::Found> AddedTokens::longest_everywhere(std::string_view text) const {
  std::vector<Found> all;
  uint32_t state = 0;
  for (size_t at = tokens_.empty() ? 0 : text.size(); at-- > 0;) {
    if (state == 0 && !ends_[uint8_t(text[at])]) continue;
    state = step(state, uint8_t(text[at]));
    if (nodes_[state].token >= 0) all.push_back({at, &tokens_[size_t(nodes_[state].token)]});
  }
  return all;
}

bool AddedTokens::takes_spaces() const {
  return std::ranges::any_of(tokens_, [](const AddedToken& token) {
    return token.right || token.text.find_first_of(" \n") != token.text.npos;
  });
}

void AddedTokens::cut(std::string_view text, bool parse_special,
                      const std::function<void(std::string_view piece, int32_t id)>& fn) const {
  size_t done = 0, next = 0, spaces_end = 0;
  const std::vector<Found> all = longest_everywhere(text);
  for (auto found = all.rbegin(); found != all.rend(); ++found) {
    if (found->start < next) continue;
    const AddedToken* const token = found->token;
    size_t start = found->start, stop = next = start + token->text.size();
    if (token->special && !parse_special) continue;
    // A token with the flag left or right also takes the white space on that side. `done` and `spaces_end` keep white
    // space from being scanned twice, so the time is linear in the text's length.
    if (token->left && done < start) start = spaces_before(text, start, done);
    if (token->right) stop = spaces_end = stop < spaces_end ? spaces_end : spaces_after(text, stop);
    if (done < start) fn(text.substr(done, start - done), -1);
    fn({}, token->id);
    done = stop;
  }
  if (done < text.size()) fn(text.substr(done), -1);
}

}  // namespace lockstep::data
