#pragma once
// Added tokens, such as <|endoftext|>: tokens that are cut out of a text before it is split into words.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "extensions/hugging_face/merges.h"

namespace lockstep::data {

/// An added token, with the flags that Hugging Face's tokenizers give it.
struct AddedToken {
  std::string text;  ///< the exact text to match
  int32_t id = 0;
  bool special = false;  ///< true: matched only if parse_special is set; in user input a special token is plain text
  bool left = false, right = false;  ///< true: the match also swallows the white space on this side (lstrip, rstrip)
};

/// Finds added tokens in linear time. Of matches that overlap, the one that begins first wins, and of those that begin
/// at the same byte the longest. An Aho-Corasick automaton (1975) over the reversed tokens reads the text backwards,
/// which gives the longest token that begins at each byte.
class AddedTokens {
 public:
  static constexpr size_t max_bytes = 4096;  ///< limit for one token
  static constexpr size_t max_nodes =
      4 << 20;  ///< limit for all tokens together: their bytes, with a suffix that tokens share counted once

  /// Adds a token. Call finish() after the last one.
  void add(AddedToken token) { tokens_.push_back(std::move(token)); }
  /// Builds the automaton. Error, beginning with `where`, if a token is empty, too long, or was added twice.
  void finish(const std::string& where);
  /// Calls fn from left to right: fn(piece, -1) for the text between tokens, fn("", id) for a token. Without
  /// parse_special, special tokens are plain text.
  void cut(std::string_view text, bool parse_special,
           const std::function<void(std::string_view piece, int32_t id)>& fn) const;
  /// True if some token contains a space or a newline, or swallows the white space behind it.
  bool takes_spaces() const;

 private:
  /// A node of the automaton stands for a text with which one or more tokens end.
  struct Node {
    uint32_t shorter = 0;  // suffix link: the longest proper prefix of this node's text that is also a node
    int32_t token = -1;    // the longest token that begins where this node's text begins, or -1
  };
  struct Found {
    size_t start;
    const AddedToken* token;
  };
  void make_nodes(const std::string& where);
  /// Returns the next node of the automaton after node `at`, when the byte before the current one is `byte`.
  uint32_t step(uint32_t at, uint8_t byte) const;
  /// For each byte at which tokens begin, the longest of these tokens; in descending order of position.
  std::vector<Found> longest_everywhere(std::string_view text) const;

  std::vector<AddedToken> tokens_;                  // sorted by text
  std::vector<Node> nodes_ = std::vector<Node>(1);  // nodes_[0] is the root, the empty text
  PairMap children_;                                // (node, byte): the node whose text has this byte in front
  bool ends_[256] = {};
};

}  // namespace lockstep::data
