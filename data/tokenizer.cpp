// Tokenizers: see tokenizer.h. Loading is in tokenizer_files.cpp.
#include "data/tokenizer.h"

#include <algorithm>
#include <queue>

#include "data/unicode.h"

namespace lockstep::data {
namespace {

constexpr std::string_view endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};

CharClass class_at(std::string_view text, size_t at, int& bytes) {
  const Char c = decode_utf8(text, at);
  bytes = c.bytes;
  return c.valid ? class_of(c.code) : CharClass::other;
}

/// End of the run of characters of one class that starts at `at`; `last` is where its last character starts.
size_t run_end(std::string_view text, size_t at, CharClass wanted, size_t& last) {
  int bytes;
  while (at < text.size() && class_at(text, at, bytes) == wanted) {
    last = at;
    at += size_t(bytes);
  }
  return at;
}

}  // namespace

Tensor Tokenizer::encode_tensor(std::string_view text) const {
  const auto ids = encode(text);
  return Tensor::from(ids, {int64_t(ids.size())});
}

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(uint8_t(c));
  return ids;
}

std::string ByteTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    LOCKSTEP_CHECK(id >= 0 && id < 256, "[tokenizer] expected ids from 0 to 255, got ", id);
    text += char(id);
  }
  return text;
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = 0; at < text.size();) {
    size_t end = at, last = at;
    int bytes;
    for (const std::string_view ending : endings)
      if (text.substr(at, ending.size()) == ending) end = at + ending.size();
    if (end == at) {
      // A space belongs to the word behind it.
      const size_t start = text[at] == ' ' && at + 1 < text.size() ? at + 1 : at;
      const CharClass kind = class_at(text, start, bytes);
      if (kind != CharClass::space) {
        end = run_end(text, start, kind, last);
      } else {
        // White space: all of it at the end of the text, else the last one is left for what follows.
        end = run_end(text, at, CharClass::space, last);
        if (end < text.size() && last > at) end = last;
      }
    }
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

std::vector<int32_t> Gpt2Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  size_t at = 0;
  const auto plain_until = [&](size_t end) {
    for (const std::string_view word : split_words(text.substr(at, end - at))) encode_word(word, ids);
    at = end;
  };
  if (!specials_.empty()) {
    bool starts[256] = {};
    for (const auto& special : specials_) starts[uint8_t(special.first[0])] = true;
    for (size_t i = 0; i < text.size();) {
      const auto found = !starts[uint8_t(text[i])]
                             ? specials_.end()
                             : std::find_if(specials_.begin(), specials_.end(), [&](const auto& special) {
                                 return text.substr(i, special.first.size()) == special.first;
                               });
      if (found == specials_.end()) {
        ++i;
        continue;
      }
      plain_until(i);
      ids.push_back(found->second);
      at = i += found->first.size();
    }
  }
  plain_until(text.size());
  return ids;
}

// A queue of pairs, best rank first, then leftmost, over a linked list of pieces: n log n for a word of n bytes, where
// searching all pairs again after every merge would take a second for one of 10,000.
void Gpt2Tokenizer::encode_word(std::string_view word, std::vector<int32_t>& out) const {
  struct Piece {
    int32_t id;
    int previous, next;
  };
  struct Candidate {
    int32_t rank;
    int left;
    int32_t left_id, right_id;  // as they were: a candidate whose pieces have changed is skipped
    bool operator>(const Candidate& other) const { return std::pair(rank, left) > std::pair(other.rank, other.left); }
  };
  std::vector<Piece> pieces;
  for (size_t i = 0; i < word.size(); ++i) {
    const int32_t id = byte_ids_[uint8_t(word[i])];
    LOCKSTEP_CHECK(id >= 0, "[tokenizer] the vocabulary has no token for byte ", int(uint8_t(word[i])),
                   ", which the text contains");
    pieces.push_back({id, int(i) - 1, i + 1 < word.size() ? int(i) + 1 : -1});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto merge_of = [&](int32_t a, int32_t b) { return merges_.find(uint64_t(uint32_t(a)) << 32 | uint32_t(b)); };
  const auto propose = [&](int left) {
    if (left < 0 || pieces[size_t(left)].next < 0) return;
    const int32_t a = pieces[size_t(left)].id, b = pieces[size_t(pieces[size_t(left)].next)].id;
    if (const auto merge = merge_of(a, b); merge != merges_.end()) queue.push({merge->second.rank, left, a, b});
  };
  for (int i = 0; i < int(pieces.size()); ++i) propose(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Piece& left = pieces[size_t(best.left)];
    if (left.id != best.left_id || left.next < 0 || pieces[size_t(left.next)].id != best.right_id) continue;
    Piece& right = pieces[size_t(left.next)];
    left.id = merge_of(best.left_id, best.right_id)->second.id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) pieces[size_t(left.next)].previous = best.left;
    propose(left.previous);
    propose(best.left);
  }
  for (int at = 0; at >= 0 && at < int(pieces.size()); at = pieces[size_t(at)].next)
    out.push_back(pieces[size_t(at)].id);
}

std::string Gpt2Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    LOCKSTEP_CHECK(id >= 0 && size_t(id) < tokens_.size() && known_[size_t(id)], "[tokenizer] expected ids from 0 to ",
                   int64_t(tokens_.size()) - 1, ", got ", id);
    text += tokens_[size_t(id)];
  }
  return text;
}

int32_t Gpt2Tokenizer::special(const std::string& token) const {
  std::string all;
  for (const auto& [name, id] : specials_) {
    if (name == token) return id;
    all += (all.empty() ? "" : ", ") + name;
  }
  fail(str("[tokenizer] no special token ", token, "; there are: ", all.empty() ? "none" : all));
}

}  // namespace lockstep::data
