#pragma once
// Errors. Every public function checks its arguments before it allocates or changes anything, and throws an Error with
// the text "[op] expected ..., got ...".
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>

namespace lockstep {

/// Thrown for a wrong call: bad shape, dtype, device, index, option or file. Nothing was changed.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Joins its arguments with operator<<: str("expected ", 3, ", got ", shape). Numbers are formatted as in C, whatever
/// the program's locale.
template <class... Args> std::string str(const Args&... args) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << args);
  return out.str();
}

/// Throws Error(message).
[[noreturn]] void fail(const std::string& message);

}  // namespace lockstep

/// Throws an Error with the joined arguments unless the condition holds.
#define LOCKSTEP_CHECK(condition, ...)                \
  do {                                                \
    if (!(condition)) [[unlikely]]                    \
      ::lockstep::fail(::lockstep::str(__VA_ARGS__)); \
  } while (0)
