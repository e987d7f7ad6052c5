#pragma once
// Errors. Every public function checks its arguments before it allocates or changes anything, and throws an Error with
// the text "[op] expected ..., got ...".
#include <ostream>
#include <stdexcept>
#include <string>

namespace lockstep {

/// Thrown for a wrong call: bad shape, dtype, device, index, option or file. Nothing was changed.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Text that is written to a stream. Not inline: every LOCKSTEP_CHECK of a user's program would compile the stream.
class TextWriter {
 public:
  TextWriter();
  ~TextWriter();
  TextWriter(const TextWriter&) = delete;
  std::string text() const;  ///< the text so far
  std::ostream& out;         ///< formats numbers as in C
};

/// Joins its arguments with operator<<: str("expected ", 3, ", got ", shape). Numbers are formatted as in C, whatever
/// the program's locale.
template <class... Args> std::string str(const Args&... args) {
  TextWriter writer;
  (writer.out << ... << args);
  return writer.text();
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
