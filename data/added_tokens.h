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

/// Finds the leftmost, and of those the longest.
class AddedTokens {
 public:
  static constexpr size_t most_bytes = 4096;  ///< of a token

  void add(AddedToken token) { tokens_.push_back(std::move(token)); }
  void finish(const std::string& where);  ///< after the last add(); Error when one is there twice
  /// From left to right, fn(piece, -1) for text between tokens and fn("", id) for a token. Special ones are text unless
  /// parse_special.
  void cut(std::string_view text, bool parse_special,
           const std::function<void(std::string_view piece, int32_t id)>& fn) const;
  /// Some token has white space in it, or takes that behind it.
  bool takes_spaces() const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;
  std::vector<AddedToken> tokens_;  // sorted by text
  bool starts_[256] = {};
};

}  // namespace lockstep::data
