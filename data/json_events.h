#pragma once
// Internal to data/*.cpp: drives nlohmann's event (SAX) parser, so that nesting, duplicate keys and limits are checked
// during parsing and Errors name the place. The parser's stack is on the heap, so deep nesting is safe.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "base/classic_text.h"

namespace lockstep::data {

/// "origin:line:column" of a position in a text whose first line has number `line`. Lines and columns count from 1,
/// columns in bytes.
inline std::string place_of(std::string_view text, size_t position, std::string_view origin, int64_t line) {
  const std::string_view before = text.substr(0, std::min(position, text.size()));
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return str(origin, ":", line + std::count(before.begin(), before.end(), '\n'), ":", 1 + before.size() - line_start);
}

/// A character iterator that records how far the parser has read.
struct TrackedChar {
  using iterator_category = std::input_iterator_tag;  ///< required by std::iterator_traits
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** furthest;
  reference operator*() const { return *at; }  ///< the current character
  TrackedChar& operator++() {                  ///< moves on, and records how far
    *furthest = ++at;
    return *this;
  }
  friend bool operator==(const TrackedChar& a, const TrackedChar& b) { return a.at == b.at; }
  friend bool operator!=(const TrackedChar& a, const TrackedChar& b) { return a.at != b.at; }
};

/// Shortens a long message to its beginning and its end.
inline std::string shortened(const std::string& text) {
  return text.size() <= 300 ? text : text.substr(0, 200) + "..." + text.substr(text.size() - 60);
}

/// Base class of event handlers: checks the nesting limit and raises Errors that name the place in the text.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  /// Parses `text`; Errors begin with `origin` and count lines from `line`.
  JsonEvents(std::string_view text, std::string_view origin, int max_depth, int64_t line = 1)
      : text_(text), origin_(origin), line_(line), max_depth_(max_depth) {}

  /// Enables python_json; call it before run(). nlohmann's parser does not know NaN and Infinity, so each is replaced
  /// by a number literal that no real file contains.
  void take_python() {
    is_python_ = true;
    if (text_.find("NaN") == text_.npos && text_.find("Infinity") == text_.npos) return;
    for (bool in_string = false; !text_.empty();) {
      const char c = text_[0];
      if (c == '"') in_string = !in_string;
      const std::string_view word = in_string ? "" : text_.starts_with("NaN") ? "NaN" : "Infinity";
      const bool found = !in_string && text_.starts_with(word);
      const size_t count = found ? word.size() : in_string && c == '\\' ? std::min<size_t>(2, text_.size()) : 1;
      python_ += found ? (word == "NaN" ? nan_ : infinity_) : text_.substr(0, count);
      text_.remove_prefix(count);
    }
    text_ = python_, furthest_ = text_.data();
  }

  /// Parses the text and calls the event handlers.
  void run() {
    // nlohmann's parser takes a zero byte for the end of the text and would ignore the rest.
    if (const size_t zero = text_.find('\0'); zero != text_.npos)
      lockstep::fail(str(place_of(text_, zero, origin_, line_), ": unexpected zero byte; remove it"));
    // The message of nlohmann's parser for an empty text differs between versions.
    if (text_.empty()) refuse("syntax error: expected JSON, got nothing; write a value, such as {}");
    const ClassicLocale classic;
    nlohmann::json::sax_parse(TrackedChar{text_.data(), &furthest_},
                              TrackedChar{text_.data() + text_.size(), &furthest_},
                              static_cast<nlohmann::json_sax<nlohmann::json>*>(this));
  }

  /// Raises an Error that names the place in the text that the parser has reached.
  template <class... Args> [[noreturn]] void refuse(const Args&... args) const {
    lockstep::fail(
        str(place_of(text_, size_t(furthest_ - text_.data()), origin_, line_), ": ", shortened(str(args...))));
  }

  bool binary(binary_t&) override { return false; }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::string what = str(error.what(), "; correct it there");  // "[json...] parse error at ...: syntax error ..."
    if (const size_t at = what.find("] "); at != std::string::npos) what = what.substr(at + 2);
    if (const size_t at = what.find(": "); at != std::string::npos && what.rfind("parse error", 0) == 0)
      what = what.substr(at + 2);
    if (const size_t at = what.find("; last read"); at != std::string::npos)
      what = what.substr(0, at) + what.substr(what.find('\'', at + 14) + 1);
    lockstep::fail(str(place_of(text_, position ? position - 1 : 0, origin_, line_), ": ", shortened(what)));
  }

 protected:
  void enter() {
    if (++depth_ > max_depth_) refuse("nested deeper than ", max_depth_, " levels; use fewer");
  }
  void leave() { --depth_; }
  int depth() const { return depth_; }
  bool is_python() const { return is_python_; }
  static double python_number(double value, const std::string& text) {
    if (text.ends_with(nan_)) return NAN;
    return text.ends_with(infinity_) ? std::copysign(INFINITY, value) : value;
  }

 private:
  static constexpr std::string_view nan_ = "0e-271828182845904523536", infinity_ = "0e-314159265358979323846";
  std::string_view text_, origin_;
  std::string python_;
  bool is_python_ = false;
  int64_t line_;
  const char* furthest_ = text_.data();
  int max_depth_, depth_ = 0;
};

}  // namespace lockstep::data
