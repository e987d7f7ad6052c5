#pragma once
// JSON as a value: for config files, metrics, tokenizers. Strict, with limits, and errors that name line and column.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::data {

/// null, true/false, an integer, a number, a string, a list or an object (whose keys keep their order).
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  // Not inline: copies of a variant take long to compile, and many headers have a Json in them.
  Json();
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

  bool is_null() const { return value_.index() == 0; }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_number() const { return is_int() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  /// "null", "a bool", "an integer", "a number", "a string", "a list" or "an object".
  const char* kind() const;

  // The value; `where` (such as "config.json: lr") opens the Error when the kind is another.
  bool as_bool(std::string_view where = "json") const;
  int64_t as_int(std::string_view where = "json") const;
  double as_number(std::string_view where = "json") const;
  const std::string& as_string(std::string_view where = "json") const;
  const Array& as_array(std::string_view where = "json") const;
  const Object& as_object(std::string_view where = "json") const;

  /// The value under `key`, or null when this is no object or has no such key.
  const Json* find(std::string_view key) const;
  /// Error that names the key when it is missing.
  const Json& at(std::string_view key, std::string_view where = "json") const;
  /// The value under `key`, made when missing. A null becomes an object.
  Json& operator[](std::string_view key);
  /// Appends to a list. A null becomes a list.
  void push_back(Json value);

  /// JSON text; indent < 0 gives one line. NaN and infinity, which JSON does not have, become null.
  std::string dump(int indent = -1) const;

  friend bool operator==(const Json& a, const Json& b);

 private:
  void dump_to(std::string& out, int indent, int depth) const;
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> value_;
};

/// The first text in it that is not UTF-8, with which its dump() cannot be read again; nullptr: there is none.
const std::string* not_utf8(const Json& json);

struct JsonLimits {
  int64_t bytes = int64_t(16) << 20;
  int depth = 64;
  bool python = false;  ///< see python_json
};
/// For files of others: NaN, Infinity and -Infinity, as Python writes them, are numbers, and a whole number beyond 64
/// bits is the nearest double.
inline constexpr JsonLimits python_json{.python = true};

/// Parses one strict JSON text. `origin` (a file name) opens the Errors: "config.json:3:14: ...". A key that appears
/// twice, a number that does not fit, text that is not UTF-8 and anything past the limits are Errors.
Json parse_json(std::string_view text, std::string_view origin, JsonLimits limits = {});
Json read_json(const std::string& path, JsonLimits limits = {});

}  // namespace lockstep::data
