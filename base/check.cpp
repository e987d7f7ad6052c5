// fail(), the only place that throws Errors (set a breakpoint here), the end of a program by an exception that nobody
// catches, and the escaping of messages.
#include "base/check.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <locale>
#include <sstream>
#include <thread>

#include "base/output_file.h"
#include "base/printable.h"

namespace lockstep {
namespace {

std::atomic<void (*)(const std::exception_ptr&)> tell_others{nullptr};

[[noreturn]] void end_by_uncaught();
// Set before main(), so that it also serves exceptions that are not Errors. A program may set its own handler later.
const std::terminate_handler former = std::set_terminate(end_by_uncaught);

void end_by_uncaught() {
  static std::atomic_flag ending;
  while (ending.test_and_set())
    std::this_thread::sleep_for(std::chrono::seconds(1));  // another thread ends the process
  const std::exception_ptr error = std::current_exception();
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& e) {
    std::cout.rdbuf()->pubsync();
    std::fflush(stdout);
    const int code = report_error(e);
    if (const auto tell = tell_others.load()) tell(error);
    std::_Exit(code);  // not exit(): other threads still use what it would destroy
  } catch (...) {}     // it has no text: the former handler names its type
  if (former) former();
  std::abort();
}

}  // namespace

TextWriter::TextWriter() : out(*new std::ostringstream) { out.imbue(std::locale::classic()); }
TextWriter::~TextWriter() { delete &out; }
std::string TextWriter::text() const { return static_cast<std::ostringstream&>(out).str(); }

void fail(const std::string& message) { throw Error(printable(message)); }

int report_error(const std::exception& error, const std::string& prefix) noexcept {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  const int code = ours ? ours->exit_code() : 1;
  try {
    const std::string text = prefix + printable(error.what()) + "\n";
    const char* const file = std::getenv("LOCKSTEP_ERROR_FILE");
    try {
      if (file && *file && OutputFile(file, true).add(text)) return code;
    } catch (const Error&) {}  // the folder is gone
    std::fputs(("error: " + text).c_str(), stderr);
  } catch (...) {}  // NOLINT: no memory for the text
  return code;
}

void on_uncaught(void (*tell)(const std::exception_ptr& error)) noexcept { tell_others = tell; }

size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? uint8_t(text[at + i]) : uint8_t(0); };
  const uint8_t b = byte(0), c = byte(1);
  if (b < 0x80) return 1;
  const size_t length = b < 0xc2 || b >= 0xf5 ? 0 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool too_long = (b == 0xe0 && c < 0xa0) || (b == 0xf0 && c < 0x90),
             no_character = (b == 0xed && c >= 0xa0) || (b == 0xf4 && c >= 0x90);
  return too_long || no_character ? 0 : length;
}

/// Escapes control characters other than those in `kept`, and invalid UTF-8.
static std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    const auto byte = uint8_t(text[at]);
    const bool controls = length == 1 ? (byte < 0x20 && kept.find(char(byte)) == kept.npos) || byte == 0x7f
                                      : length == 2 && byte == 0xc2 && uint8_t(text[at + 1]) < 0xa0;
    const std::string_view one = text.substr(at, length == 0 ? 1 : length);
    if (length > 0 && !controls) out += one;
    else
      for (const char c : one)
        for (const char digit : {'\\', 'x', "0123456789abcdef"[uint8_t(c) >> 4], "0123456789abcdef"[uint8_t(c) & 15]})
          out += digit;
    at += one.size();
  }
  return out;
}

std::string printable(std::string_view text) { return escaped(text, "\n\t"); }
std::string one_line(std::string_view text) { return escaped(text, ""); }

}  // namespace lockstep
