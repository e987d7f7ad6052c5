#include "engine/config.h"

#include <algorithm>

#include "engine/config_table.h"
#include "tensor/check.h"
#include "tensor/suggest.h"

namespace lockstep::engine {

using data::Json;

namespace {

class Reader {
 public:
  explicit Reader(Config& config) : config_(config) {}
  std::vector<std::string> problems;

  /// All members of the object at `prefix` ("", "zero_optimization.").
  void walk(const Json& object, const std::string& prefix) {
    for (const auto& [name, value] : object.as_object()) member(prefix, name, value);
  }

 private:
  void member(const std::string& prefix, const std::string& name, const Json& value) {
    const std::string path = prefix + name;
    const Key* key = name.find('.') == name.npos ? find_key(path) : nullptr;
    if (key) return take(*key, value, path);
    if (name.find('.') == name.npos && is_section(path)) {
      if (value.is_object()) walk(value, path + ".");
      else if (!value.is_null())
        problems.push_back(
            str(path, ": expected an object {...}, got ", shown(value),
                path == "zero_optimization" && value.is_bool() ? "; write {\"stage\": 1} for true" : ""));
      return;
    }
    std::vector<std::string> known;
    std::string elsewhere;
    for (const Key& other : config_keys()) {
      const size_t last = other.path.rfind('.') + 1;
      if (other.path.substr(last) == name && elsewhere.empty() && name != "enabled" && name != "type")
        elsewhere = other.path;
      if (other.path.compare(0, prefix.size(), prefix) == 0)
        known.push_back(other.path.substr(prefix.size(), other.path.find('.', prefix.size()) - prefix.size()));
    }
    std::string hint = suggestion(name, known);
    if (hint.empty() && (find_key(name) || (!prefix.empty() && is_section(name))))
      hint = "; it belongs to the top level";
    else if (hint.empty() && !elsewhere.empty())
      hint = "; it belongs into " + elsewhere.substr(0, elsewhere.rfind('.'));
    else if (name.find('.') != name.npos) hint = "; keys inside keys are objects inside objects";
    problems.push_back(str(shown(Json(path)).substr(1, shown(Json(path)).size() - 2), ": no such key", hint));
  }

  static bool is_section(const std::string& path) {
    return std::any_of(config_keys().begin(), config_keys().end(),
                       [&](const Key& key) { return key.path.compare(0, path.size() + 1, path + ".") == 0; });
  }

  void take(const Key& key, const Json& value, const std::string& as) {
    const bool automatic = value.is_string() && value.as_string() == "auto";
    switch (key.status) {
      case Status::renamed: return rename(key, value, as);
      case Status::removed:
        if (asks_for_nothing(value)) return;
        return problems.push_back(str(as, ": DeepSpeed has removed this key; ", key.doc));
      case Status::off:
        if (asks_for_nothing(value) || value == key.fallback ||
            (value.is_number() && key.fallback.is_number() && value.as_number() == key.fallback.as_number()))
          return;
        return problems.push_back(
            str(as, ": expected ", shown(key.fallback), " or nothing, got ", shown(value), "; ", key.doc));
      case Status::inert: {
        const auto good = automatic ? std::optional(key.fallback) : coerced(value, key.fallback, key.range);
        if (!good)
          return problems.push_back(str(as, ": expected ", expected(key), ", got ", shown(value),
                                        key.range.bounds() && value.is_number() ? "; " + key.doc : ""));
        config_.inert.emplace(key.path, *good);
        if (*good != key.fallback) config_.warnings.push_back(str(as, ": accepted, and has no effect: ", key.doc));
        return;
      }
      case Status::works: break;
    }
    if (!config_.given.insert(key.path).second)
      return problems.push_back(str(as, ": the file says ", key.path, " already"));
    if (automatic && key.automatic) {
      config_.given.erase(key.path);
      return;
    }
    const bool never = key.range.inf_is_null && value.is_string() && value.as_string() == "inf";
    if (assign(key.slot(config_), never ? Json() : value, key.range)) return;
    std::string cure;
    if (automatic)
      cure = str(", which Hugging Face's Trainer fills in; write the value",
                 key.fallback.is_null() || key.fallback == Json("")
                     ? ""
                     : ", such as " + shown(key.fallback) + " (the default)");
    else if (!key.range.words.empty() && value.is_string()) cure = suggestion(value.as_string(), key.range.words);
    problems.push_back(str(as, ": expected ", expected(key), ", got ", shown(value), cure));
  }

  void rename(const Key& key, const Json& value, const std::string& as) {
    const std::string now = key.fallback.as_string();
    config_.warnings.push_back(str(as, ": a deprecated name of ", now));
    if (is_section(now) && !find_key(now)) {
      if (value.is_object()) walk(value, now + ".");
      else problems.push_back(str(as, ": expected an object {...}, got ", shown(value)));
    } else if (!value.is_bool()) {
      problems.push_back(str(as, ": expected true or false, got ", shown(value)));
    } else if (now.ends_with(".device")) {
      if (value.as_bool()) take(*find_key(now), Json("cpu"), as);
    } else {
      take(*find_key(now), value, as);
    }
  }

  Config& config_;
};

}  // namespace

Config config_from_json(std::string_view text, const std::string& origin) {
  const Json json = data::parse_json(plain_json(text, origin), origin);
  LOCKSTEP_CHECK(json.is_object(), origin, ": expected an object {...}, got ", json.kind());
  Config config;
  config.origin = origin;
  Reader reader(config);
  reader.walk(json, "");
  check_values(config, reader.problems);
  fail_if_any(origin, reader.problems);
  return config;
}

}  // namespace lockstep::engine
