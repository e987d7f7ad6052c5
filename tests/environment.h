#pragma once
// Environment variables for the duration of a test.
#include <cstdlib>
#include <optional>
#include <string>

namespace testing {

/// While it lives, the variable has this value, or is unset if there is none; then it has its former one.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const std::string& name, const std::optional<std::string>& value) : name_(name) {
    if (const char* const before = std::getenv(name.c_str())) before_ = before;
    set(value);
  }
  ~EnvironmentVariable() { set(before_); }
  EnvironmentVariable(const EnvironmentVariable&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    if (value) setenv(name_.c_str(), value->c_str(), 1);
    else unsetenv(name_.c_str());
  }
  std::string name_;
  std::optional<std::string> before_;
};

}  // namespace testing
