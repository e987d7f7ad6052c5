#pragma once
// Checks what the messages of errors say.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "base/check.h"
#include "tensor/stream.h"

/// The message of the Error that fn throws; "(no error)" if none. A device may report errors only when it is
/// synchronized.
inline std::string message(const std::function<void()>& fn) {
  try {
    fn();
    lockstep::synchronize(lockstep::default_device());
  } catch (const lockstep::Error& error) { return error.what(); }
  return "(no error)";
}
/// True if `part` occurs in `text`.
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Where an Error's message must have a text: anywhere, at its beginning, or the text is the whole message.
enum class Has { part, beginning, exact };
/// Checks that `said`, the message of an Error, has `text`.
inline void check_error(const char* file, int line, const std::string& said, const std::string& text, Has has) {
  INFO(file, ":", line);
  const bool fits = has == Has::exact       ? said == text
                    : has == Has::beginning ? said.starts_with(text)
                                            : contains(said, text);
  CHECK_MESSAGE(fits, "expected \"", text, "\", got \"", said, "\"");
}
#define CHECK_ERROR_HAS(expression, text, has) \
  check_error(__FILE__, __LINE__, message([&] { (void)(expression); }), text, has)
/// Checks that evaluating the expression throws an Error whose message contains the text.
#define CHECK_ERROR(expression, text) CHECK_ERROR_HAS(expression, text, Has::part)
/// Checks that evaluating the expression throws an Error whose message begins with the text.
#define CHECK_ERROR_BEGINS(expression, text) CHECK_ERROR_HAS(expression, text, Has::beginning)
/// Checks that evaluating the expression throws an Error with exactly this message.
#define CHECK_ERROR_IS(expression, text) CHECK_ERROR_HAS(expression, text, Has::exact)

/// Checks that function(arguments) throws an Error that begins with "[function] expected " and the text. The arguments
/// are in parentheses.
#define CHECK_REJECTED(function, arguments, text) \
  CHECK_ERROR_BEGINS(function arguments, "[" #function "] expected " text)

/// The text that an error about values on the default device must contain. On a device a kernel finds the error: it
/// names itself, and any of the wrong values, so only the part from "expected" to ", got" is fixed.
inline std::string found_in_values(const std::string& text) {
  if (lockstep::default_device().is_cpu()) return text;
  const size_t begin = text.find("expected"), end = text.find(", got");
  return text.substr(begin, end - begin);
}
