#pragma once
// Environment variables for the duration of a test.
#include <cstdlib>
#include <optional>
#include <string>

namespace testing {

/// While it lives, the variable has this value; then its former one.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~EnvironmentVariable() {
    if (before_) setenv(name_, before_->c_str(), 1);
    else unsetenv(name_);
  }
  EnvironmentVariable(const EnvironmentVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace testing
