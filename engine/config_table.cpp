// The table of configuration keys, and the operations on a key's value that need no other key.
#include "engine/config_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/suggest.h"
#include "engine/section.h"
#include "pipeline/schedule.h"

namespace lockstep::engine {

using data::Json;

namespace {

// --- for each type of value: to() makes JSON, put() reads JSON (false: bad type or range), wants() describes both ---

template <class T> Json sample(const ValueRange& range) {
  if constexpr (std::is_same_v<T, Json>) return range.anything ? Json() : Json::Object();
  else return T{};
}
template <class T> Json to(const T& value) { return Json(value); }
template <class T> bool put(T& value, const Json& json, const ValueRange& range) {
  if constexpr (std::is_same_v<T, std::string>)
    if (json.is_null() && value.empty()) return true;  // null stands for an empty path
  const auto good = coerced(json, sample<T>(range), range);
  if (!good) return false;
  if constexpr (std::is_same_v<T, bool>) value = good->as_bool();
  else if constexpr (std::is_integral_v<T>) value = T(good->as_int());
  else if constexpr (std::is_same_v<T, double>) value = good->as_number();
  else if constexpr (std::is_same_v<T, std::string>) value = good->as_string();
  else value = *good;
  return true;
}
template <class T> std::string wants(const T&, const ValueRange& range) { return expected(sample<T>(range), range); }

template <class T> Json to(const std::vector<T>& list) { return Json::Array(list.begin(), list.end()); }
template <class T> bool put(std::vector<T>& list, const Json& json, const ValueRange& range) {
  if (!json.is_array()) return false;
  std::vector<T> all;
  for (const Json& item : json.as_array())
    if (!put(all.emplace_back(), item, range)) return false;
  list = std::move(all);
  return true;
}
std::string wants(const std::vector<std::string>&, const ValueRange&) { return "a list of strings"; }
std::string wants(const std::vector<int64_t>&, const ValueRange& range) {
  return range.bounds() ? str("a list of integers from ", range.least, " on") : "a list of integers";
}

Json to(const optim::PerGroup& rates) {
  std::vector<double> all;
  for (int g = 0; g < rates.count(); ++g) all.push_back(rates[g]);
  return all.size() == 1 ? to(all[0]) : to(all);
}
bool put(optim::PerGroup& rates, const Json& json, const ValueRange& range) {
  std::vector<double> all(1);
  if (!(json.is_array() ? put(all, json, range) && !all.empty() : put(all[0], json, range))) return false;
  rates = std::move(all);
  return true;
}
std::string wants(const optim::PerGroup&, const ValueRange& range) {
  return expected(0.0, range) + ", or a list with one for each group";
}

std::vector<std::string> names_of(optim::Warmup) { return {"log", "linear"}; }
std::vector<std::string> names_of(zero::Offload) { return {"none", "cpu", "nvme"}; }
template <class T>
concept Enum = std::is_enum_v<T>;
template <Enum T> Json to(const T& value) { return names_of(value)[size_t(value)]; }
template <Enum T> bool put(T& value, const Json& json, const ValueRange&) {
  const std::vector<std::string> names = names_of(value);
  const auto word = coerced(json, "", words(names));
  if (word) value = T(std::find(names.begin(), names.end(), word->as_string()) - names.begin());
  return word.has_value();
}
template <Enum T> std::string wants(const T& value, const ValueRange&) { return listed(names_of(value)); }

template <class T> Json to(const std::optional<T>& value) { return value ? to(*value) : Json(); }
template <class T> bool put(std::optional<T>& value, const Json& json, const ValueRange& range) {
  std::optional<T> now;
  if (!json.is_null() && !put(now.emplace(), json, range)) return false;
  value = std::move(now);
  return true;
}
template <class T> std::string wants(const std::optional<T>&, const ValueRange& range) {
  return wants(T{}, range) + ", or null";
}

template <class T> Json to(T* slot) { return to(*slot); }
template <class T> bool put(T* slot, const Json& json, const ValueRange& range) { return put(*slot, json, range); }
template <class T> std::string wants(T* slot, const ValueRange& range) { return wants(*slot, range); }

Json to(Count count) { return int64_t(*count.number); }
bool put(Count count, const Json& json, const ValueRange& range) {
  int64_t integer = 0;
  if (!put(integer, json, range)) return false;
  *count.number = double(integer);
  return true;
}
std::string wants(Count, const ValueRange& range) { return expected(0, range); }

Json to(Pair pair) { return Json::Array{*pair.first, *pair.second}; }
bool put(Pair pair, const Json& json, const ValueRange& range) {
  std::vector<double> both;
  if (!put(both, json, range) || both.size() != 2) return false;
  *pair.first = both[0], *pair.second = both[1];
  return true;
}
std::string wants(Pair, const ValueRange&) { return "a list of two numbers"; }

std::vector<Key> all_keys() {
  Config defaults;
  std::vector<Key> keys;
#define KEY_OF(field, range, theirs, doc, automatic)                                                                  \
  keys.push_back(working_key(                                                                                         \
      #field, [](void* c) -> FieldPointer { return &static_cast<Config*>(c)->field; }, &defaults, range, theirs, doc, \
      automatic));
#define KEY(field, range, theirs, doc) KEY_OF(field, range, theirs, doc, false)
#define KEY_AUTO(field, range, theirs, doc) KEY_OF(field, range, theirs, doc, true)
#include "engine/config_keys.inc"
#undef KEY_OF
#undef KEY
#undef KEY_AUTO
  for (const Section& section : sections()) keys.insert(keys.end(), section.keys.begin(), section.keys.end());
  return keys;
}

}  // namespace

std::vector<Precision> precisions() {
  std::vector<Precision> all;
  for (const Section& section : sections()) all.insert(all.end(), section.precisions.begin(), section.precisions.end());
  return all;
}

std::string lower(std::string text) {
  for (char& c : text)  // tolower() depends on the locale: in tr_TR it does not convert I
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return text;
}

const std::vector<Key>& config_keys() {
  static const std::vector<Key> keys = all_keys();
  return keys;
}

Key working_key(const char* path, FieldPointer (*slot)(void*), void* defaults, const ValueRange& range,
                const char* theirs, const char* doc, bool automatic) {
  const FieldPointer at = slot(defaults);
  return {path, nullptr, slot, json_of(at), range, theirs, doc, automatic, expected(at, range)};
}

const Key* find_key(const std::vector<Key>& keys, std::string_view path) {
  for (const Key& key : keys)
    if (key.path == path) return &key;
  return nullptr;
}

Json json_of(const FieldPointer& slot) {
  return std::visit([](auto at) { return to(at); }, slot);
}
bool assign(const FieldPointer& slot, const Json& value, const ValueRange& range) {
  return std::visit([&](auto at) { return put(at, value, range); }, slot);
}
std::string expected(const FieldPointer& slot, const ValueRange& range) {
  return std::visit([&](auto at) { return wants(at, range); }, slot);
}

Json value_of(const Key& key, const void* config) { return json_of(key.slot(const_cast<void*>(config))); }

std::string expected(const Json& fallback, const ValueRange& range) {
  std::string what = !range.words.empty()   ? listed(range.words)
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
  if (!fallback.is_int() && !fallback.is_number()) return what;
  if (range.least > -INFINITY && range.greatest <= 1e15)
    what += " from " + text(range.least) + " to " + text(range.greatest);
  else if (range.bounds())
    what += (range.above ? " > " : " >= ") + text(range.least);  // a limit above 1e15 is that of the type
  return what;
}

std::string expected(const Key& key) { return key.slot ? key.wants : expected(key.fallback, key.range); }

std::string printed(const Json& value) {
  std::string text = value.dump();
  if (text.size() > 60) {
    size_t end = 57;
    while (end > 0 && (uint8_t(text[end]) & 0xC0) == 0x80) --end;  // not inside a UTF-8 sequence
    text = text.substr(0, end) + "...";
  }
  return text;
}

std::optional<Json> coerced(const Json& value, const Json& fallback, const ValueRange& range) {
  if (value.is_null()) return fallback.is_null() ? std::optional(Json()) : std::nullopt;
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
    // Large integers may be written as 1e9. A double beyond 2^63 does not fit int64.
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

void fail_if_any(const std::string& origin, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  as_usage([&] {
    if (problems.size() == 1) fail(origin + ": " + problems[0]);
    fail(fmt::format("{}: {} problems\n  {}", origin, problems.size(), fmt::join(problems, "\n  ")));
  });
}

}  // namespace lockstep::engine
