// Reads and lists keys that have no effect of their own. See other_keys.h.
#include "extensions/deepspeed/other_keys.h"

#include "base/check.h"

namespace lockstep::engine {

using data::Json;

namespace {

/// True for values that switch a feature off: false, null, numbers <= 0, "none", "", an empty list or object, an object
/// with "enabled": false, or an object without "enabled" in which every member has such a value.
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

void take_inert(KeyReader& reader, const Key& key, const Json& value, const std::string& as) {
  const bool automatic = value.is_string() && value.as_string() == "auto";
  const auto good = automatic ? std::optional(key.fallback) : coerced(value, key.fallback, key.range);
  if (!good)
    return reader.problems.push_back(str(as, ": expected ", expected(key), ", got ", printed(value),
                                         key.range.bounds() && value.is_number() ? "; " + key.doc : ""));
  reader.said.inert.emplace(key.path, *good);
  if (*good != key.fallback) reader.said.warnings.push_back(str(as, ": accepted, and has no effect: ", key.doc));
}

void take_off(KeyReader& reader, const Key& key, const Json& value, const std::string& as) {
  if (asks_for_nothing(value) || value == key.fallback ||
      (value.is_number() && key.fallback.is_number() && value.as_number() == key.fallback.as_number()))
    return;
  reader.problems.push_back(
      str(as, ": expected ", printed(key.fallback), " or nothing, got ", printed(value), "; ", key.doc));
}

void take_removed(KeyReader& reader, const Key& key, const Json& value, const std::string& as) {
  if (asks_for_nothing(value)) return;
  reader.problems.push_back(str(as, ": DeepSpeed has removed this key; ", key.doc));
}

void take_alias(KeyReader& reader, const Key& key, const Json& value, const std::string& as) {
  const std::string now = key.fallback.as_string();
  if (reader.is_section(now) && !find_key(reader.keys, now)) {
    if (value.is_object()) reader.walk(value, now + ".");
    else reader.problems.push_back(str(as, ": expected an object {...}, got ", printed(value)));
  } else if (now.ends_with(".device")) {
    if (!value.is_bool()) reader.problems.push_back(str(as, ": expected true or false, got ", printed(value)));
    else if (value.as_bool()) reader.take(*find_key(reader.keys, now), Json("cpu"), as);
  } else {
    reader.take(*find_key(reader.keys, now), value, as);
  }
}

void take_renamed(KeyReader& reader, const Key& key, const Json& value, const std::string& as) {
  reader.said.warnings.push_back(str(as, ": a deprecated name of ", key.fallback.as_string()));
  take_alias(reader, key, value, as);
}

constexpr decltype(Key::take) readers[] = {take_inert, take_off, take_removed, take_renamed, take_alias};

}  // namespace

Key other_key(const char* path, Status status, const std::string& fallback, const ValueRange& range, const char* doc) {
  return {path, readers[int(status)], nullptr, data::parse_json(fallback, path), range, "", doc, false, ""};
}

bool has_status(const Key& key, Status status) { return key.take == readers[int(status)]; }

std::string lists_of(const std::vector<Key>& keys) {
  std::string out;
  const auto list = [&](const char* title, const char* text, Status status, auto&& last) {
    std::string lines;
    for (const Key& key : keys)
      if (has_status(key, status)) lines += "- `" + key.path + "`" + last(key) + "\n";
    if (!lines.empty()) out += str("\n## ", title, "\n\n", text, "\n\n", lines);
  };
  const auto now = [](const Key& key) {
    return " is `" + key.fallback.as_string() + "`" +
           (key.path.ends_with("cpu_offload") || key.path.ends_with("cpu_offload_param") ? " = `cpu`" : "");
  };
  list("Accepted, without effect",
       "These keys are read and change nothing. A value other than the default gives a warning.", Status::inert,
       [](const Key& key) { return ": " + key.doc; });
  list("Accepted only when switched off",
       "These features are not here. Accepted are the value shown, `false`, `null`, an empty object, or\n"
       "one with `\"enabled\": false`. Anything else is an error that says what follows the colon.",
       Status::off, [](const Key& key) { return " " + brief(key.fallback) + ": " + key.doc; });
  list("Removed from DeepSpeed",
       "DeepSpeed no longer has these keys. They are refused in the same way, with what to do instead.",
       Status::removed, [](const Key& key) { return ": " + key.doc; });
  list("Other names", "DeepSpeed accepts these names too.", Status::alias, now);
  list("Deprecated names", "Accepted, with a warning.", Status::renamed, now);
  return out;
}

}  // namespace lockstep::engine
