#pragma once
// Text of numbers and letters in C's own ("classic") locale, whatever locale the program has set: with de_DE, strtod(),
// printf() and streams read and write 0,5, and with tr_TR tolower('I') is not i. str() (base/check.h) uses the
// classic locale, too.
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace lockstep {

/// Parses the whole text as a number; a leading + is allowed for floats. Returns nullopt if the text is not a
/// number, or if T cannot hold the number.
template <class T> std::optional<T> read_number(std::string_view text) {
  if (std::is_floating_point_v<T> && text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const char* const end = text.data() + text.size();
  T value{};
  const std::from_chars_result read = std::from_chars(text.data(), end, value);
  return read.ec == std::errc() && read.ptr == end ? std::optional(value) : std::nullopt;
}

/// printf() to a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

/// True for '0' to '9'.
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
/// True for ASCII letters.
constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// While an object lives, C functions of this thread (strtod, snprintf, localeconv) use the classic locale. For
/// libraries that call these functions.
class ClassicLocale {
 public:
  ClassicLocale();
  ClassicLocale(const ClassicLocale&) = delete;
  ClassicLocale& operator=(const ClassicLocale&) = delete;
  ~ClassicLocale();

 private:
  void* before_;
};

}  // namespace lockstep
