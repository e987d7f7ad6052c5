#pragma once
// Reads the records of a trace, complete or truncated.
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// A record of a trace as JSON.
using Record = nlohmann::json;

/// Reads a trace like a viewer does: an array whose end may be missing. full: the file must be complete.
inline std::vector<Record> read_trace(const std::string& path, bool full = true) {
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!full) {
    text.resize(text.rfind(",\n"));
    text += "]";
  }
  return Record::parse(text).get<std::vector<Record>>();
}

/// The records whose `key` is `value`.
inline std::vector<Record> with(const std::vector<Record>& all, const std::string& key, const std::string& value) {
  std::vector<Record> found;
  for (const Record& r : all)
    if (r.value(key, "") == value) found.push_back(r);
  return found;
}
