#pragma once
// Errors. Every public function checks its arguments before it allocates or changes anything, and throws an Error with
// the text "[op] expected ..., got ...".
#include <exception>
#include <ostream>
#include <stdexcept>
#include <string>

namespace lockstep {

/// Thrown for a wrong call: bad shape, dtype, device, index, option or file. Nothing was changed. A program that does
/// not catch it ends with exit_code(), and the line "error: ..." on stderr.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual int exit_code() const noexcept { return 1; }  ///< the exit code of a program that this Error ends
};
/// An invalid command line or configuration.
class UsageError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 2; }
};
/// Runs code that only checks options: its Errors become UsageErrors.
template <class Fn> auto as_usage(const Fn& fn) {
  try {
    return fn();
  } catch (const Error& error) { throw UsageError(error.what()); }
}
/// Prints "error: ", `prefix` and the exception's text on stderr, and returns the exit code. A rank of `lockstep run`
/// writes them to the file LOCKSTEP_ERROR_FILE instead, and the launcher prints the first cause.
int report_error(const std::exception& error, const std::string& prefix = "") noexcept;
/// Sets a function that is called with an exception that nobody catches, before the process ends.
void on_uncaught(void (*tell)(const std::exception_ptr& error)) noexcept;

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
