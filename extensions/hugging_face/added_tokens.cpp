// Finds added tokens in a text by an Aho-Corasick automaton. See added_tokens.h.
#include "extensions/hugging_face/added_tokens.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "data/utf8.h"
#include "extensions/hugging_face/unicode.h"

namespace lockstep::data {
namespace {

bool space_at(std::string_view text, size_t at, size_t& bytes) {
  const Char c = decode_utf8(text, at);
  bytes = size_t(c.bytes);
  return c.valid && class_of(c.code) == CharClass::space;
}

/// Returns the position at which the white space before `end` begins; not below `least`.
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
    LOCKSTEP_CHECK(!text.empty() && text.size() <= max_bytes, where, ": expected added tokens of 1 to ", max_bytes,
                   " bytes, got ", text.size(), "; correct the file");
    LOCKSTEP_CHECK(i == 0 || text != tokens_[i - 1].text, where, ": added token \"", text,
                   "\" appears twice; keep one of them");
    ends_[uint8_t(text.back())] = true;
  }
  make_nodes(where);
}

/// Builds the nodes breadth-first, so that a node's children are contiguous and its suffix link points to a node that
/// exists already.
void AddedTokens::make_nodes(const std::string& where) {
  struct Range {
    uint32_t first, last;  // indices into `order`: the tokens with this node's suffix
  };
  std::vector<uint32_t> order(tokens_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto byte_of = [&](uint32_t token, size_t depth) {
    const std::string& text = tokens_[token].text;
    return uint8_t(text[text.size() - 1 - depth]);
  };
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const std::string &x = tokens_[a].text, &y = tokens_[b].text;
    return std::lexicographical_compare(x.rbegin(), x.rend(), y.rbegin(), y.rend(),
                                        [](char c, char d) { return uint8_t(c) < uint8_t(d); });
  });
  std::vector<Range> ranges{{0, uint32_t(order.size())}};
  nodes_.assign(1, {});
  for (size_t begin = 0, end = 1, depth = 0; begin < end; begin = end, end = nodes_.size(), ++depth) {
    LOCKSTEP_CHECK(end <= max_nodes, where, ": expected added tokens of at most ", max_nodes,
                   " bytes together, with endings that they share counted once; leave some out");
    for (size_t at = begin; at < end; ++at) {
      auto [first, last] = ranges[at];
      if (first < last && tokens_[order[first]].text.size() == depth) nodes_[at].token = int32_t(order[first++]);
      else nodes_[at].token = nodes_[nodes_[at].shorter].token;
      nodes_[at].child = uint32_t(nodes_.size());
      for (uint32_t next; first < last; first = next) {
        const uint8_t byte = byte_of(order[first], depth);
        for (next = first + 1; next < last && byte_of(order[next], depth) == byte;) ++next;
        nodes_.push_back({.shorter = at == 0 ? 0 : step(nodes_[at].shorter, byte), .byte = byte});
        ranges.push_back({first, next});
        ++nodes_[at].children;
      }
    }
  }
}

uint32_t AddedTokens::step(uint32_t at, uint8_t byte) const {
  for (;; at = nodes_[at].shorter) {
    const Node *const first = nodes_.data() + nodes_[at].child, *const last = first + nodes_[at].children;
    const Node* const found = std::lower_bound(first, last, byte, [](const Node& n, uint8_t b) { return n.byte < b; });
    if (found != last && found->byte == byte) return uint32_t(found - nodes_.data());
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
  for (const AddedToken& token : tokens_)
    if (token.right || token.text.find_first_of(" \n") != token.text.npos) return true;
  return false;
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
