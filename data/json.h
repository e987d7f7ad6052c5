#pragma once
// JSON values, for config files, metrics and tokenizers. The parser is strict and limited; Errors name line and column.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::data {

/// A JSON value: null, bool, integer, floating-point number, string, list, or object. Objects keep their keys' order.
class Json {
 public:
  /// A list.
  using Array = std::vector<Json>;
  /// An object: pairs of key and value, in order.
  using Object = std::vector<std::pair<std::string, Json>>;

  /// A null. The constructors are not inline: copying a variant is slow to compile, and many headers contain a Json.
  Json();
  /// A value of the argument's kind: here a bool.
  Json(bool value);
  Json(int value);
  Json(int64_t value);
  Json(double value);
  Json(const char* value);
  Json(std::string value);
  Json(Array value);
  Json(Object value);
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  bool is_null() const { return value_.index() == 0; }                     ///< true for null
  bool is_bool() const { return std::holds_alternative<bool>(value_); }    ///< true for true and false
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }  ///< true for an integer
  /// True for an integer or a double.
  bool is_number() const { return is_int() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }  ///< true for a string
  bool is_array() const { return std::holds_alternative<Array>(value_); }         ///< true for a list
  bool is_object() const { return std::holds_alternative<Object>(value_); }       ///< true for an object
  /// The kind of value, for messages: "null", "a bool", "an integer", "a number", "a string", "a list" or "an object".
  const char* kind() const;

  /// The value. Error if it is of another kind; the Error begins with `where` (such as "config.json: lr").
  bool as_bool(std::string_view where = "json") const;
  /// The value, an integer. Error for a double, even if it is whole.
  int64_t as_int(std::string_view where = "json") const;
  /// The value, an integer or a double, as a double.
  double as_number(std::string_view where = "json") const;
  /// The string.
  const std::string& as_string(std::string_view where = "json") const;
  /// The list.
  const Array& as_array(std::string_view where = "json") const;
  /// The object.
  const Object& as_object(std::string_view where = "json") const;

  /// The value under `key`, or nullptr if this is not an object or has no such key.
  const Json* find(std::string_view key) const;
  /// The value under `key`. Error if the key is missing; the Error begins with `where`.
  const Json& at(std::string_view key, std::string_view where = "json") const;
  /// The value under `key`, which is added (as null) if it is missing. A null becomes an object.
  Json& operator[](std::string_view key);
  /// Appends to a list. A null becomes a list.
  void push_back(Json value);

  /// JSON text, on one line if indent < 0. NaN and infinity, which JSON lacks, become null.
  std::string dump(int indent = -1) const;

  friend bool operator==(const Json& a, const Json& b);

 private:
  void dump_to(std::string& out, int indent, int depth) const;
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> value_;
};

/// The first string or key that is not valid UTF-8, or nullptr. dump() of such a value cannot be parsed again.
const std::string* not_utf8(const Json& json);

/// Limits of parse_json().
struct JsonLimits {
  int64_t bytes = int64_t(16) << 20;  ///< most bytes of a text
  int depth = 64;                     ///< most levels of nesting
  bool python = false;                ///< true: accept Python's extensions, see python_json
};
/// For files written by Python: accepts NaN, Infinity and -Infinity as numbers, and rounds an integer beyond 64 bits to
/// the nearest double.
inline constexpr JsonLimits python_json{.python = true};

/// Parses one JSON text, strictly. Errors begin with `origin` (a file name) and the place: "config.json:3:14: ...".
/// Errors are also raised for duplicate keys, numbers that do not fit, invalid UTF-8, and texts beyond the limits.
Json parse_json(std::string_view text, std::string_view origin, JsonLimits limits = {});
/// parse_json() of one line of a file; `line` is its number, for Errors. It does not check limits.bytes.
Json parse_json_line(std::string_view text, std::string_view origin, int64_t line, JsonLimits limits = {});
/// parse_json() of a file.
Json read_json(const std::string& path, JsonLimits limits = {});

}  // namespace lockstep::data
