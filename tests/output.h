#pragma once
// What a program prints, held back.
#include <iostream>
#include <sstream>
#include <string>

namespace testing {

/// While it lives, what is written to the stream goes into its text.
class HeldOutput {
 public:
  explicit HeldOutput(std::ostream& stream = std::cout) : stream_(stream), before_(stream.rdbuf(held_.rdbuf())) {}
  ~HeldOutput() { stream_.rdbuf(before_); }
  HeldOutput(const HeldOutput&) = delete;
  /// What was written so far.
  std::string text() const { return held_.str(); }

 private:
  std::ostringstream held_;
  std::ostream& stream_;
  std::streambuf* const before_;
};

}  // namespace testing
