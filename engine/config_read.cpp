// Stores a file's values in a config by the table of keys, and collects all problems.
#include <algorithm>

#include "base/check.h"
#include "base/suggest.h"
#include "engine/config_table.h"

namespace lockstep::engine {

using data::Json;

void KeyReader::walk(const Json& object, const std::string& prefix) {
  for (const auto& [name, value] : object.as_object()) member(prefix, name, value);
}

void KeyReader::member(const std::string& prefix, const std::string& name, const Json& value) {
  const std::string path = prefix + name;
  const Key* key = name.find('.') == name.npos ? find_key(keys, path) : nullptr;
  if (key) return take(*key, value, path);
  if (name.find('.') == name.npos && is_section(path)) {
    if (value.is_object()) walk(value, path + ".");
    else if (!value.is_null())
      problems.push_back(str(path, ": expected an object {...}, got ", printed(value),
                             path == "zero_optimization" && value.is_bool() ? "; write {\"stage\": 1} for true" : ""));
    return;
  }
  std::vector<std::string> known;
  std::string elsewhere;
  for (const Key& other : keys) {
    const size_t last = other.path.rfind('.') + 1;
    if (other.path.substr(last) == name && elsewhere.empty() && name != "enabled" && name != "type")
      elsewhere = other.path;
    if (other.path.compare(0, prefix.size(), prefix) == 0)
      known.push_back(other.path.substr(prefix.size(), other.path.find('.', prefix.size()) - prefix.size()));
  }
  std::string hint = suggestion(name, known);
  if (hint.empty() && (find_key(keys, name) || (!prefix.empty() && is_section(name))))
    hint = "; it belongs in the top level";
  else if (hint.empty() && !elsewhere.empty()) hint = "; it belongs in " + elsewhere.substr(0, elsewhere.rfind('.'));
  else if (name.find('.') != name.npos) hint = "; keys inside keys are objects inside objects";
#ifdef LOCKSTEP_SOME_EXTENSIONS
  hint += "; an extension that was not built may have it: build with -Dextensions=all";
#endif
  problems.push_back(str(printed(Json(path)).substr(1, printed(Json(path)).size() - 2), ": no such key", hint));
}

bool KeyReader::is_section(const std::string& path) const {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const Key& key) { return key.path.compare(0, path.size() + 1, path + ".") == 0; });
}

void KeyReader::take(const Key& key, const Json& value, const std::string& as) {
  if (key.take) return key.take(*this, key, value, as);
  const bool automatic = value.is_string() && value.as_string() == "auto";
  const FieldPointer slot = key.slot(config_);
  if (!said.given.insert(key.path).second) {  // set before by another name; the same value is allowed
    const Json before = json_of(slot);
    if (!assign(slot, value, key.range) || json_of(slot) != before)
      problems.push_back(str(as, ": the file says ", key.path, " already, and it is ", printed(before)));
    return;
  }
  if (automatic && key.automatic) {
    said.given.erase(key.path);
    return;
  }
  const bool never = key.range.inf_is_null && value.is_string() && value.as_string() == "inf";
  if (assign(slot, never ? Json() : value, key.range)) return;
  std::string cure;
  if (automatic)
    cure = str(", which Hugging Face's Trainer fills in; write the value",
               key.fallback.is_null() || key.fallback == Json("")
                   ? ""
                   : ", such as " + printed(key.fallback) + " (the default)");
  else if (!key.range.words.empty() && value.is_string()) cure = suggestion(value.as_string(), key.range.words);
  problems.push_back(str(as, ": expected ", expected(key), ", got ", printed(value), cure));
}

void read_keys(const Json& object, const std::vector<Key>& keys, void* config, const Said& said,
               std::vector<std::string>& problems) {
  KeyReader(keys, config, said, problems).walk(object, "");
}

void check_ranges(const std::vector<Key>& keys, void* config, std::vector<std::string>& problems) {
  for (const Key& key : keys) {
    if (key.take) continue;
    const Json value = value_of(key, config);
    if (!assign(key.slot(config), value, key.range))
      problems.push_back(str(key.path, ": expected ", expected(key), ", got ", printed(value)));
  }
}

}  // namespace lockstep::engine
