#pragma once
// Tokens that are cut out of a text before anything else, such as <|endoftext|>.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

struct AddedToken {
  std::string text;  ///< as it is looked for
  int32_t id = 0;
  bool special = false;              ///< not looked for in what a user types
  bool left = false, right = false;  ///< takes the white space on this side with it
};

/// Finds the leftmost, and of those the longest, in linear time: a text is read backwards by an automaton of all tokens
/// backwards (Aho and Corasick, 1975), which knows the longest token that begins at each byte.
class AddedTokens {
 public:
  static constexpr size_t most_bytes = 4096;     ///< of a token
  static constexpr size_t most_nodes = 4 << 20;  ///< bytes of all tokens, those of an ending that they share once

  void add(AddedToken token) { tokens_.push_back(std::move(token)); }
  void finish(const std::string& where);  ///< after the last add(); Error when one is there twice
  /// From left to right, fn(piece, -1) for text between tokens and fn("", id) for a token. Special ones are text unless
  /// parse_special.
  void cut(std::string_view text, bool parse_special,
           const std::function<void(std::string_view piece, int32_t id)>& fn) const;
  /// Some token has white space in it, or takes that behind it.
  bool takes_spaces() const;

 private:
  /// What one or more tokens end in. Its children have one more byte before it.
  struct Node {
    uint32_t child = 0;    // the first of them
    uint32_t shorter = 0;  // the node of the longest beginning of this one that is a node
    int32_t token = -1;    // the longest that begins where this one does
    uint16_t children = 0;
    uint8_t byte = 0;
  };
  struct Found {
    size_t start;
    const AddedToken* token;
  };
  void make_nodes(const std::string& where);
  /// Where one more byte before it leads.
  uint32_t step(uint32_t at, uint8_t byte) const;
  /// From right to left.
  std::vector<Found> longest_everywhere(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // sorted by text
  std::vector<Node> nodes_;         // the first stands for nothing
  bool ends_[256] = {};
};

}  // namespace lockstep::data
