#pragma once
// Errors. Every public function checks its arguments before it allocates or changes anything, and says
// "[op] expected ..., got ...".
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>

namespace lockstep {

/// A wrong call: bad shape, dtype, device, index, option or file. Nothing was changed.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Joins its arguments with operator<<: str("expected ", 3, ", got ", shape). Whatever locale the program has set,
/// numbers are as in C.
template <class... Args> std::string str(const Args&... args) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << args);
  return out.str();
}

[[noreturn]] void fail(const std::string& message);

}  // namespace lockstep

#define LOCKSTEP_CHECK(condition, ...)                \
  do {                                                \
    if (!(condition)) [[unlikely]]                    \
      ::lockstep::fail(::lockstep::str(__VA_ARGS__)); \
  } while (0)
