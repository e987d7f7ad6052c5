#pragma once
// TextStream: streaming of generated text in whole characters, and without stop strings.
#include <string>
#include <vector>

namespace lockstep::nn {

/// Takes bytes, returns text that is safe to show. Bytes that may begin a character or a stop string are held back
/// until more bytes arrive. Invalid UTF-8 becomes U+FFFD.
class TextStream {
 public:
  /// A stream that ends where one of the strings `stop` appears.
  explicit TextStream(std::vector<std::string> stop = {}) : stop_(std::move(stop)) {}
  /// Adds bytes; returns the text that can be shown now. After a stop string, returns "".
  std::string push(const std::string& bytes);
  /// Returns the bytes held back; call it at the end.
  std::string flush();
  /// True once a stop string has appeared.
  bool stopped() const { return stopped_; }

 private:
  std::string take(size_t count, bool last);
  std::vector<std::string> stop_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace lockstep::nn
