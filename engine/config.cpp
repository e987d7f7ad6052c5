#include "engine/config.h"

#include <sodium.h>

#include <algorithm>
#include <filesystem>

#include "data/files.h"
#include "engine/config_table.h"
#include "tensor/check.h"
#include "tensor/suggest.h"

namespace lockstep::engine {

using data::Json;

namespace {

// --- from a file, JSON text or base64 to JSON as JSON has it ---

constexpr int64_t most_bytes = 1 << 20;

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string place(std::string_view text, size_t at, const std::string& origin) {
  const std::string_view before = text.substr(0, at);
  return str(origin, ":", 1 + std::count(before.begin(), before.end(), '\n'), ":", at - (before.rfind('\n') + 1) + 1);
}

/// Where the string that begins at `at` ends: behind its closing quote, or at the end of a text that lacks it.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return std::min(at + 1, text.size());
}

/// The bytes that base64 stands for, in either alphabet; "" when it is none.
std::string from_base64(const std::string& text) {
  for (const int variant : {sodium_base64_VARIANT_ORIGINAL_NO_PADDING, sodium_base64_VARIANT_URLSAFE_NO_PADDING}) {
    const size_t size = std::min(text.find('='), text.size());
    std::string bytes(size, '\0');
    size_t length = 0;
    if (sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(), size, "\n\r ",
                          &length, nullptr, variant) == 0)
      return bytes.substr(0, length);
  }
  return "";
}

/// Whether it begins like a config: with '{', behind blanks and comments.
bool looks_like_json(std::string_view text) {
  const size_t at = text.find_first_not_of(" \t\r\n");
  return at != text.npos && (text[at] == '{' || text[at] == '/' || text[at] == '#') && text.find('{') != text.npos;
}

/// Text of a config, blanked where JSON would not have it: comments and trailing commas.
std::string plain_json(std::string_view text, const std::string& origin) {
  std::string out(text);
  const auto blank = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      if (out[i] != '\n') out[i] = ' ';
  };
  size_t comma = text.npos;  // the last thing that was no blank and no comment, if it is a comma behind a value
  char last = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"') {
      i = end_of_string(text, i);
      comma = text.npos, last = c;
    } else if (c == '#' || text.substr(i, 2) == "//") {
      const size_t end = std::min(text.find('\n', i), text.size());
      blank(i, end);
      i = end;
    } else if (text.substr(i, 2) == "/*") {
      const size_t end = text.find("*/", i + 2);
      LOCKSTEP_CHECK(end != text.npos, place(text, i, origin), ": this comment does not end");
      blank(i, end + 2);
      i = end + 2;
    } else if (is_word(c)) {
      size_t end = i;
      while (end < text.size() && is_word(text[end])) ++end;
      const std::string_view word = text.substr(i, end - i);
      const bool inside_number = i > 0 && ((text[i - 1] >= '0' && text[i - 1] <= '9') || text[i - 1] == '.');  // 1e9
      if (!inside_number && word != "true" && word != "false" && word != "null") {
        const char* cure = word == "True"    ? "write true"
                           : word == "False" ? "write false"
                           : word == "None"  ? "write null"
                           : word == "NaN" || word == "nan" || word == "Infinity" || word == "inf"
                               ? "a config has finite numbers only"
                               : "strings and names of keys stand in double quotes";
        fail(str(place(text, i, origin), ": expected JSON, got ", word, "; ", cure));
      }
      i = end;
      comma = text.npos, last = c;
    } else {
      if ((c == '}' || c == ']') && comma != text.npos) out[comma] = ' ';
      if (!is_space(c)) {
        comma = c == ',' && last != 0 && last != '{' && last != '[' && last != ',' && last != ':' ? i : text.npos;
        last = c;
      }
      ++i;
    }
  }
  return out;
}

/// The text of a source, and its name.
std::pair<std::string, std::string> text_of(const std::string& source) {
  std::error_code error;
  const bool exists = std::filesystem::exists(source, error);  // false for what is too long for a name
  if (looks_like_json(source) && !exists) return {source, "config"};
  if (exists) {
    LOCKSTEP_CHECK(!std::filesystem::is_directory(source, error), source,
                   ": expected a configuration file, got a folder");
    return {data::read_file(source, most_bytes), source};
  }
  const std::string decoded = from_base64(source);
  LOCKSTEP_CHECK(looks_like_json(decoded), "expected a configuration file, JSON text or that in base64, got \"",
                 source.substr(0, 80), source.size() > 80 ? "..." : "", "\", which is none of them");
  return {decoded, "config in base64"};
}

/// The object that the text of a config is. Error with line and column.
Json object_of(std::string_view text, const std::string& origin) {
  Json json = data::parse_json(plain_json(text, origin), origin);
  LOCKSTEP_CHECK(json.is_object(), origin, ": expected an object {...}, got ", json.kind());
  return json;
}

// --- keys ---

/// Whether the file asks for nothing: false, null, 0 or less, "none", an empty list or object, or one that is not
/// "enabled".
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
  const Json json = object_of(text, origin);
  Config config;
  config.origin = origin;
  Reader reader(config);
  reader.walk(json, "");
  check_values(config, reader.problems);
  fail_if_any(origin, reader.problems);
  return config;
}

Config read_config(const std::string& source) {
  const auto [text, origin] = text_of(source);
  return config_from_json(text, origin);
}

Json read_config_json(const std::string& source) {
  const auto [text, origin] = text_of(source);
  return object_of(text, origin);
}

}  // namespace lockstep::engine
