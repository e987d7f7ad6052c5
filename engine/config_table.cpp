// The table of keys, and what can be said of a value by its key alone.
#include "engine/config_table.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>

#include "pipeline/schedule.h"
#include "tensor/check.h"

namespace lockstep::engine {

using data::Json;

namespace {

template <class... F> struct Overloaded : F... { using F::operator()...; };
template <class... F> Overloaded(F...) -> Overloaded<F...>;  // clang 16 does not know what follows from the aggregate

Json json_of(const Slot& slot) {
  return std::visit(
      Overloaded{[](const std::vector<std::string>* list) { return Json(Json::Array(list->begin(), list->end())); },
                 []<class T>(const std::optional<T>* value) { return *value ? Json(**value) : Json(); },
                 [](const auto* value) { return Json(*value); }},
      slot);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string joined(const std::vector<std::string>& list) {
  std::string all;
  for (size_t i = 0; i < list.size(); ++i) all += (i == 0 ? "" : i + 1 == list.size() ? " or " : ", ") + list[i];
  return all;
}

bool optional(const Slot& slot) {
  return std::visit(Overloaded{[]<class T>(const std::optional<T>*) { return true; },
                               [](const std::string* s) { return s->empty(); }, [](const auto*) { return false; }},
                    slot);
}

/// A value of the type that an optional holds, which its default cannot show.
Json sample(const Slot& slot) {
  return std::visit(Overloaded{[]<class T>(const std::optional<T>*) { return Json(T{}); },
                               [](const auto* value) {
                                 return json_of(Slot(
                                     const_cast<std::remove_const_t<std::remove_pointer_t<decltype(value)>>*>(value)));
                               }},
                    slot);
}

std::vector<Key> all_keys() {
  Config defaults;
  std::vector<Key> keys;
  const auto works = [&](const char* path, Slot (*slot)(Config&), const Range& range, const char* theirs,
                         const char* doc, bool automatic) {
    keys.push_back({path, Status::works, slot, json_of(slot(defaults)), range, theirs, doc, automatic});
  };
  const auto other = [&](const char* path, Status status, const char* fallback, const Range& range, const char* doc) {
    keys.push_back({path, status, nullptr, data::parse_json(fallback, path), range, "", doc, false});
  };
#define KEY(field, range, theirs, doc) \
  works(                               \
      #field, [](Config& c) -> Slot { return &c.field; }, range, theirs, doc, false);
#define KEY_AUTO(field, range, theirs, doc) \
  works(                                    \
      #field, [](Config& c) -> Slot { return &c.field; }, range, theirs, doc, true);
#define INERT(path, fallback, range, why) other(path, Status::inert, fallback, range, why);
#define OFF(path, fallback, why) other(path, Status::off, fallback, any(), why);
#define REMOVED(path, cure) other(path, Status::removed, "false", any(), cure);
#define RENAMED(path, now, unused) other(path, Status::renamed, "\"" now "\"", any(), unused);
#include "engine/config_keys.inc"
#undef KEY
#undef KEY_AUTO
#undef INERT
#undef OFF
#undef REMOVED
#undef RENAMED
  return keys;
}

}  // namespace

const std::vector<Key>& config_keys() {
  static const std::vector<Key> keys = all_keys();
  return keys;
}

const Key* find_key(std::string_view path) {
  for (const Key& key : config_keys())
    if (key.path == path) return &key;
  return nullptr;
}

data::Json value_of(const Key& key, const Config& config) { return json_of(key.slot(const_cast<Config&>(config))); }

std::string expected(const Json& fallback, const Range& range, bool nullable) {
  std::string what = !range.words.empty()   ? joined(range.words)
                     : fallback.is_bool()   ? "true or false"
                     : fallback.is_int()    ? "an integer"
                     : fallback.is_number() ? "a number"
                     : fallback.is_string() ? "a string"
                     : fallback.is_array()  ? "a list of strings"
                     : fallback.is_object() ? "an object {...}"
                                            : "a value";
  const auto text = [](double value) {
    const double power = value > 0 ? std::floor(std::log10(value) + 1e-9) : 0;
    return power >= 6 && value == std::pow(10, power) ? str("1e", power) : str(value);
  };
  if (range.least > -INFINITY && range.most <= 1e15) what += " from " + text(range.least) + " to " + text(range.most);
  else if (range.bounds())
    what += (range.above ? " > " : " >= ") + text(range.least);  // a bound beyond 1e15 is that of the type
  return what + (nullable ? ", or null" : "");
}

std::string expected(const Key& key) {
  if (!key.slot) return expected(key.fallback, key.range);
  Config defaults;
  const Slot slot = key.slot(defaults);
  return expected(sample(slot), key.range, optional(slot) && !std::holds_alternative<std::string*>(slot));
}

std::string shown(const Json& value) {
  std::string text = value.dump();
  if (text.size() > 60) {
    size_t end = 57;
    while (end > 0 && (uint8_t(text[end]) & 0xC0) == 0x80) --end;  // not inside a character
    text = text.substr(0, end) + "...";
  }
  return text;
}

std::optional<Json> coerced(const Json& value, const Json& fallback, const Range& range, bool nullable) {
  if (value.is_null()) return nullable || fallback.is_null() ? std::optional(Json()) : std::nullopt;
  if (!range.words.empty()) {
    if (!value.is_string()) return std::nullopt;
    const std::string word = lower(value.as_string());
    return std::find(range.words.begin(), range.words.end(), word) == range.words.end() ? std::nullopt
                                                                                        : std::optional(Json(word));
  }
  if (fallback.is_null()) return value;
  if (fallback.is_bool()) return value.is_bool() ? std::optional(value) : std::nullopt;
  if (fallback.is_int() || fallback.is_number()) {
    if (!value.is_number()) return std::nullopt;
    const double number = value.as_number();
    if (!std::isfinite(number) || !range.holds(number)) return std::nullopt;
    if (!fallback.is_int()) return Json(number);
    if (value.is_int()) return value;
    // 1e9 is how people write large integers. Beyond 2^63 a double is no int64.
    return number == std::floor(number) && std::abs(number) < 9.2e18 ? std::optional(Json(int64_t(number)))
                                                                     : std::nullopt;
  }
  if (fallback.is_array()) {
    if (!value.is_array()) return std::nullopt;
    for (const Json& item : value.as_array())
      if (!item.is_string()) return std::nullopt;
    return value;
  }
  return value.is_string() == fallback.is_string() && value.is_object() == fallback.is_object() ? std::optional(value)
                                                                                                : std::nullopt;
}

bool asks_for_nothing(const Json& value) {
  if (value.is_null() || (value.is_bool() && !value.as_bool()) || (value.is_number() && value.as_number() <= 0))
    return true;
  if (value.is_string()) return lower(value.as_string()) == "none" || value.as_string().empty();
  if (value.is_array()) return value.as_array().empty();
  if (!value.is_object()) return false;
  const Json* enabled = value.find("enabled");
  if (enabled) return enabled->is_bool() && !enabled->as_bool();
  for (const auto& [name, member] : value.as_object())
    if (!asks_for_nothing(member)) return false;
  return true;
}

void fail_if_any(const std::string& origin, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  if (problems.size() == 1) fail(origin + ": " + problems[0]);
  std::string all = str(origin, ": ", problems.size(), " problems");
  for (const std::string& problem : problems) all += "\n  " + problem;
  fail(all);
}

}  // namespace lockstep::engine
