// Parses JSON text, and writes JSON values as text. See json.h.
#include "data/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "base/printable.h"
#include "data/files.h"
#include "data/json_events.h"

namespace lockstep::data {
namespace {

/// Builds a Json from parser events.
class Builder final : public JsonEvents {
 public:
  using JsonEvents::JsonEvents;
  Json root;

  bool null() override { return put(Json()); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(int64_t(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    return value > uint64_t(INT64_MAX) ? number_float(double(value), std::to_string(value)) : put(int64_t(value));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!is_python() && text.find_first_of(".eE") == std::string::npos)
      refuse("integer ", text, " does not fit in 64 bits with sign; write it as a string, or with a decimal point");
    if (!std::isfinite(value)) refuse("number ", text, " does not fit in a double; write a smaller one, or a string");
    return put(is_python() ? python_number(value, text) : value);
  }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool start_object(size_t) override { return open(Json::Object()); }
  bool start_array(size_t) override { return open(Json::Array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!open_.back().keys.insert(name).second) refuse("key \"", name, "\" appears twice; remove one of the two");
    open_.back().key = std::move(name);
    return true;
  }

 private:
  struct Open {
    Json value;
    std::string key;                       // key of the member being read
    std::unordered_set<std::string> keys;  // all keys so far, to find duplicates
  };

  bool put(Json value) {
    if (open_.empty()) root = std::move(value);
    else if (open_.back().value.is_array()) open_.back().value.push_back(std::move(value));
    else
      const_cast<Json::Object&>(open_.back().value.as_object())
          .emplace_back(std::move(open_.back().key), std::move(value));
    return true;
  }
  bool open(Json value) {
    enter();
    open_.push_back({std::move(value), {}, {}});
    return true;
  }
  bool close() {
    leave();
    Json done = std::move(open_.back().value);
    open_.pop_back();
    return put(std::move(done));
  }

  std::vector<Open> open_;
};

void dump_string(std::string& out, const std::string& text) {
  const auto escaped = [&](unsigned code) {
    const char* digits = "0123456789abcdef";
    ((out += "\\u00") += digits[code >> 4]) += digits[code & 15];
  };
  out += '"';
  for (size_t at = 0, length; at < text.size(); at += length) {
    const auto c = uint8_t(text[at]);
    length = c < 0x80 ? 1 : std::max<size_t>(utf8_length(text, at), 1);
    if (c == '"' || c == '\\') (out += '\\') += char(c);
    else if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (c < 0x20 || c == 0x7f) escaped(c);
    else if (length == 2 && c == 0xc2 && uint8_t(text[at + 1]) < 0xa0)
      escaped(uint8_t(text[at + 1]));  // C1 control characters: terminals interpret them, too
    else out.append(text, at, length);
  }
  out += '"';
}

template <class T, class V> const T& get(const V& value, const Json& json, std::string_view where, const char* wanted) {
  const T* found = std::get_if<T>(&value);
  LOCKSTEP_CHECK(found, one_line(where), ": expected ", wanted, ", got ", json.kind());
  return *found;
}

}  // namespace

Json::Json() : value_(nullptr) {}
Json::Json(bool value) : value_(value) {}
Json::Json(int value) : value_(int64_t(value)) {}
Json::Json(int64_t value) : value_(value) {}
Json::Json(double value) : value_(value) {}
Json::Json(const char* value) : value_(std::string(value)) {}
Json::Json(std::string value) : value_(std::move(value)) {}
Json::Json(Array value) : value_(std::move(value)) {}
Json::Json(Object value) : value_(std::move(value)) {}
Json::Json(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(const Json&) = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;
bool operator==(const Json& a, const Json& b) { return a.value_ == b.value_; }

const char* Json::kind() const {
  constexpr const char* names[] = {"null", "a bool", "an integer", "a number", "a string", "a list", "an object"};
  return names[value_.index()];
}

bool Json::as_bool(std::string_view where) const { return get<bool>(value_, *this, where, "a bool"); }
int64_t Json::as_int(std::string_view where) const { return get<int64_t>(value_, *this, where, "an integer"); }
double Json::as_number(std::string_view where) const {
  return is_int() ? double(as_int()) : get<double>(value_, *this, where, "a number");
}
const std::string& Json::as_string(std::string_view where) const {
  return get<std::string>(value_, *this, where, "a string");
}
const Json::Array& Json::as_array(std::string_view where) const { return get<Array>(value_, *this, where, "a list"); }
const Json::Object& Json::as_object(std::string_view where) const {
  return get<Object>(value_, *this, where, "an object");
}

const Json* Json::find(std::string_view key) const {
  if (const Object* object = std::get_if<Object>(&value_))
    for (const auto& [name, value] : *object)
      if (name == key) return &value;
  return nullptr;
}

const Json& Json::at(std::string_view key, std::string_view where) const {
  as_object(where);
  const Json* found = find(key);
  LOCKSTEP_CHECK(found, one_line(where), ": expected a key \"", key, "\", found none; add it");
  return *found;
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object();
  as_object();
  if (const Json* found = find(key)) return const_cast<Json&>(*found);
  return std::get<Object>(value_).emplace_back(std::string(key), Json()).second;
}

void Json::push_back(Json value) {
  if (is_null()) value_ = Array();
  as_array();
  std::get<Array>(value_).push_back(std::move(value));
}

std::string Json::dump(int indent) const {
  std::string out;
  dump_to(out, indent, 0);
  return out;
}

void Json::dump_to(std::string& out, int indent, int depth) const {
  const auto new_line = [&](int level) {
    if (indent >= 0) (out += '\n').append(size_t(level) * size_t(indent), ' ');
  };
  char digits[32];
  if (is_null()) out += "null";
  else if (is_bool()) out += as_bool() ? "true" : "false";
  else if (is_int()) out.append(digits, std::to_chars(digits, digits + 32, as_int()).ptr);
  else if (is_number()) {
    if (!std::isfinite(as_number())) out += "null";
    else {
      const std::string_view text(digits, size_t(std::to_chars(digits, digits + 32, as_number()).ptr - digits));
      out += text;
      if (text.find_first_of(".e") == text.npos) out += ".0";  // readers must see a floating-point number
    }
  } else if (is_string()) dump_string(out, as_string());
  else if (is_array()) {
    out += '[';
    for (const Json& item : as_array()) {
      if (&item != as_array().data()) out += indent < 0 ? ", " : ",";
      new_line(depth + 1);
      item.dump_to(out, indent, depth + 1);
    }
    if (!as_array().empty()) new_line(depth);
    out += ']';
  } else {
    out += '{';
    for (const auto& member : as_object()) {
      if (&member != as_object().data()) out += indent < 0 ? ", " : ",";
      new_line(depth + 1);
      dump_string(out, member.first);
      out += ": ";
      member.second.dump_to(out, indent, depth + 1);
    }
    if (!as_object().empty()) new_line(depth);
    out += '}';
  }
}

const std::string* not_utf8(const Json& json) {
  const auto is_utf8 = [](const std::string& text) {
    for (size_t at = 0, length; at < text.size(); at += length)
      if ((length = utf8_length(text, at)) == 0) return false;
    return true;
  };
  const std::string* found = nullptr;
  if (json.is_string() && !is_utf8(json.as_string())) return &json.as_string();
  if (json.is_array())
    for (const Json& item : json.as_array())
      if (!found) found = not_utf8(item);
  if (json.is_object())
    for (const auto& [key, value] : json.as_object())
      if (!found) found = is_utf8(key) ? not_utf8(value) : &key;
  return found;
}

Json parse_json_line(std::string_view text, std::string_view origin, int64_t line, JsonLimits limits) {
  Builder builder(text, origin, limits.depth, line);
  if (limits.python) builder.take_python();
  builder.run();
  return std::move(builder.root);
}

Json parse_json(std::string_view text, std::string_view origin, JsonLimits limits) {
  LOCKSTEP_CHECK(int64_t(text.size()) <= limits.bytes, origin, ": expected at most ", limits.bytes,
                 " bytes of JSON, got ", text.size(), "; split it, or raise JsonLimits::bytes");
  return parse_json_line(text, origin, 1, limits);
}

Json read_json(const std::string& path, JsonLimits limits) {
  return parse_json(read_file(path, limits.bytes), path, limits);
}

}  // namespace lockstep::data
