#pragma once
// Text that comes in pieces of bytes: whole characters only, and nothing of a stop string.
#include <string>
#include <vector>

namespace lockstep::nn {

/// Pieces go in, text that is safe to show comes out: bytes that may be the beginning of a character or of a stop
/// string are held back until more have come. Bytes that are no UTF-8 become U+FFFD.
class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stop = {}) : stop_(std::move(stop)) {}
  /// What can be shown now. Behind a stop string nothing comes any more.
  std::string push(const std::string& bytes);
  /// What was held back, at the end.
  std::string flush();
  bool stopped() const { return stopped_; }

 private:
  std::string take(size_t count, bool last);
  std::vector<std::string> stop_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace lockstep::nn
