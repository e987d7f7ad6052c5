// Reads configuration files: text or base64 to JSON, and JSON to a Config. See config.h.
#include "engine/config.h"

#include <sodium.h>

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/suggest.h"
#include "data/files.h"
#include "engine/config_table.h"

namespace lockstep::engine {

using data::Json;

namespace {

// --- converts a file, JSON text or base64 to strict JSON ---

constexpr int64_t max_bytes = 1 << 20;

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string place(std::string_view text, size_t at, const std::string& origin) {
  const std::string_view before = text.substr(0, at);
  return str(origin, ":", 1 + std::count(before.begin(), before.end(), '\n'), ":", at - (before.rfind('\n') + 1) + 1);
}

/// End of the string that begins at `at`: after its closing quote, or at the end of the text if that is missing.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return std::min(at + 1, text.size());
}

/// Decodes base64 in the standard or the URL-safe alphabet; "" if the text is not base64.
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

/// True for a text that begins like a config: with '{', possibly after blanks and comments.
bool looks_like_json(std::string_view text) {
  const size_t at = text.find_first_not_of(" \t\r\n");
  return at != text.npos && (text[at] == '{' || text[at] == '/' || text[at] == '#') && text.find('{') != text.npos;
}

/// Overwrites comments and trailing commas, which JSON does not allow, with blanks.
std::string plain_json(std::string_view text, const std::string& origin) {
  std::string out(text);
  const auto blank = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      if (out[i] != '\n') out[i] = ' ';
  };
  size_t comma = text.npos;  // position of a comma that follows a value, if only blanks and comments came after it
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
      LOCKSTEP_CHECK(end != text.npos, place(text, i, origin), ": this comment does not end; expected */");
      blank(i, end + 2);
      i = end + 2;
    } else if (is_word(c)) {
      size_t end = i;
      while (end < text.size() && is_word(text[end])) ++end;
      const std::string_view word = text.substr(i, end - i);
      // The "e" of 1e9 looks like a word here, but belongs to a number.
      const bool inside_number = i > 0 && ((text[i - 1] >= '0' && text[i - 1] <= '9') || text[i - 1] == '.');
      if (!inside_number && word != "true" && word != "false" && word != "null") {
        const char* cure = word == "True"    ? "write true"
                           : word == "False" ? "write false"
                           : word == "None"  ? "write null"
                           : word == "NaN" || word == "nan" || word == "Infinity" || word == "inf"
                               ? "write a finite number"
                               : "strings and names of keys must be in double quotes";
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

/// The JSON text that `source` stands for (a file's name, JSON text or base64 of it), and its name for messages.
std::pair<std::string, std::string> text_of(const std::string& source) {
  std::error_code error;
  const bool exists = std::filesystem::exists(source, error);  // false for texts that are too long for a name
  if (looks_like_json(source) && !exists) return {source, "config"};
  if (exists) {
    LOCKSTEP_CHECK(!std::filesystem::is_directory(source, error), source,
                   ": expected a configuration file, got a folder; give the path of the file");
    return {data::read_file(source, max_bytes), source};
  }
  const std::string decoded = from_base64(source);
  LOCKSTEP_CHECK(looks_like_json(decoded), "expected a configuration file, JSON text or JSON text in base64, got \"",
                 source.substr(0, 80), source.size() > 80 ? "..." : "", "\", which is none of them; check the path");
  return {decoded, "config in base64"};
}

/// Parses the text as a JSON object. A syntax error throws an Error that names line and column.
Json object_of(std::string_view text, const std::string& origin) {
  Json json = data::parse_json(plain_json(text, origin), origin);
  LOCKSTEP_CHECK(json.is_object(), origin, ": expected an object {...}, got ", json.kind(), "; add braces");
  return json;
}

}  // namespace

Config config_from_json(std::string_view text, const std::string& origin) {
  const Json json = as_usage([&] { return object_of(text, origin); });
  Config config;
  config.origin = origin;
  std::vector<std::string> problems;
  read_keys(json, config_keys(), &config, {config.given, config.inert, config.warnings}, problems);
  check_values(config, problems);
  fail_if_any(origin, problems);
  return config;
}

Config read_config(const std::string& source) {
  const auto [text, origin] = as_usage([&] { return text_of(source); });
  return config_from_json(text, origin);
}

Json read_config_json(const std::string& source) {
  const auto [text, origin] = text_of(source);
  return object_of(text, origin);
}

}  // namespace lockstep::engine
