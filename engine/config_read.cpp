// Stores a file's values in a config by the table of keys, and collects all problems.
#include <algorithm>

#include "base/check.h"
#include "base/suggest.h"
#include "engine/config_table.h"

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

class Reader {
 public:
  Reader(const std::vector<Key>& keys, void* config, const Said& said, std::vector<std::string>& problems)
      : keys_(keys), config_(config), said_(said), problems_(problems) {}

  /// Reads all members of the object at `prefix`: "" for the whole file, or a path such as "zero_optimization.".
  void walk(const Json& object, const std::string& prefix) {
    for (const auto& [name, value] : object.as_object()) member(prefix, name, value);
  }

 private:
  void member(const std::string& prefix, const std::string& name, const Json& value) {
    const std::string path = prefix + name;
    const Key* key = name.find('.') == name.npos ? find_key(keys_, path) : nullptr;
    if (key) return take(*key, value, path);
    if (name.find('.') == name.npos && is_section(path)) {
      if (value.is_object()) walk(value, path + ".");
      else if (!value.is_null())
        problems_.push_back(
            str(path, ": expected an object {...}, got ", shown(value),
                path == "zero_optimization" && value.is_bool() ? "; write {\"stage\": 1} for true" : ""));
      return;
    }
    std::vector<std::string> known;
    std::string elsewhere;
    for (const Key& other : keys_) {
      const size_t last = other.path.rfind('.') + 1;
      if (other.path.substr(last) == name && elsewhere.empty() && name != "enabled" && name != "type")
        elsewhere = other.path;
      if (other.path.compare(0, prefix.size(), prefix) == 0)
        known.push_back(other.path.substr(prefix.size(), other.path.find('.', prefix.size()) - prefix.size()));
    }
    std::string hint = suggestion(name, known);
    if (hint.empty() && (find_key(keys_, name) || (!prefix.empty() && is_section(name))))
      hint = "; it belongs in the top level";
    else if (hint.empty() && !elsewhere.empty()) hint = "; it belongs in " + elsewhere.substr(0, elsewhere.rfind('.'));
    else if (name.find('.') != name.npos) hint = "; keys inside keys are objects inside objects";
    problems_.push_back(str(shown(Json(path)).substr(1, shown(Json(path)).size() - 2), ": no such key", hint));
  }

  bool is_section(const std::string& path) const {
    return std::any_of(keys_.begin(), keys_.end(),
                       [&](const Key& key) { return key.path.compare(0, path.size() + 1, path + ".") == 0; });
  }

  void take(const Key& key, const Json& value, const std::string& as) {
    const bool automatic = value.is_string() && value.as_string() == "auto";
    switch (key.status) {
      case Status::renamed:
        said_.warnings.push_back(str(as, ": a deprecated name of ", key.fallback.as_string()));
        [[fallthrough]];
      case Status::alias: return rename(key, value, as);
      case Status::removed:
        if (asks_for_nothing(value)) return;
        return problems_.push_back(str(as, ": DeepSpeed has removed this key; ", key.doc));
      case Status::off:
        if (asks_for_nothing(value) || value == key.fallback ||
            (value.is_number() && key.fallback.is_number() && value.as_number() == key.fallback.as_number()))
          return;
        return problems_.push_back(
            str(as, ": expected ", shown(key.fallback), " or nothing, got ", shown(value), "; ", key.doc));
      case Status::inert: {
        const auto good = automatic ? std::optional(key.fallback) : coerced(value, key.fallback, key.range);
        if (!good)
          return problems_.push_back(str(as, ": expected ", expected(key), ", got ", shown(value),
                                         key.range.bounds() && value.is_number() ? "; " + key.doc : ""));
        said_.inert.emplace(key.path, *good);
        if (*good != key.fallback) said_.warnings.push_back(str(as, ": accepted, and has no effect: ", key.doc));
        return;
      }
      case Status::works: break;
    }
    const Slot slot = key.slot(config_);
    if (!said_.given.insert(key.path).second) {  // set before by another name; the same value is allowed
      const Json before = json_of(slot);
      if (!assign(slot, value, key.range) || json_of(slot) != before)
        problems_.push_back(str(as, ": the file says ", key.path, " already, and it is ", shown(before)));
      return;
    }
    if (automatic && key.automatic) {
      said_.given.erase(key.path);
      return;
    }
    const bool never = key.range.inf_is_null && value.is_string() && value.as_string() == "inf";
    if (assign(slot, never ? Json() : value, key.range)) return;
    std::string cure;
    if (automatic)
      cure = str(", which Hugging Face's Trainer fills in; write the value",
                 key.fallback.is_null() || key.fallback == Json("")
                     ? ""
                     : ", such as " + shown(key.fallback) + " (the default)");
    else if (!key.range.words.empty() && value.is_string()) cure = suggestion(value.as_string(), key.range.words);
    problems_.push_back(str(as, ": expected ", expected(key), ", got ", shown(value), cure));
  }

  void rename(const Key& key, const Json& value, const std::string& as) {
    const std::string now = key.fallback.as_string();
    if (is_section(now) && !find_key(keys_, now)) {
      if (value.is_object()) walk(value, now + ".");
      else problems_.push_back(str(as, ": expected an object {...}, got ", shown(value)));
    } else if (now.ends_with(".device")) {
      if (!value.is_bool()) problems_.push_back(str(as, ": expected true or false, got ", shown(value)));
      else if (value.as_bool()) take(*find_key(keys_, now), Json("cpu"), as);
    } else {
      take(*find_key(keys_, now), value, as);
    }
  }

  const std::vector<Key>& keys_;
  void* config_;
  Said said_;
  std::vector<std::string>& problems_;
};

}  // namespace

void read_keys(const Json& object, const std::vector<Key>& keys, void* config, const Said& said,
               std::vector<std::string>& problems) {
  Reader(keys, config, said, problems).walk(object, "");
}

void check_ranges(const std::vector<Key>& keys, void* config, std::vector<std::string>& problems) {
  for (const Key& key : keys) {
    if (key.status != Status::works) continue;
    const Json value = value_of(key, config);
    if (!assign(key.slot(config), value, key.range))
      problems.push_back(str(key.path, ": expected ", expected(key), ", got ", shown(value)));
  }
}

}  // namespace lockstep::engine
