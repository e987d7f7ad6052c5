#pragma once
// JSON Lines (jsonlines.org): one JSON value per line. Files are mapped and read by line, so they may have any size.
#include <memory>
#include <optional>
#include <string>

#include "data/files.h"
#include "data/json.h"

namespace lockstep::data {

/// Reads a .jsonl file from start to end.
class JsonLines {
 public:
  /// `limits` apply to each line.
  explicit JsonLines(const std::string& path, JsonLimits limits = python_json);

  /// The value of the next line that is not blank, or none at the end of the file. Errors name file, line and column:
  /// "a.jsonl:7:12: ...".
  std::optional<Json> next();
  /// Number of the line that next() returned last, counted from 1.
  int64_t line() const { return line_; }

 private:
  std::string path_;
  JsonLimits limits_;
  std::shared_ptr<MappedFile> file_;
  std::string_view rest_;  // lines that next() has not read
  int64_t line_ = 0;
};

}  // namespace lockstep::data
