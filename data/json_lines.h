#pragma once
// JSON Lines (jsonlines.org): one JSON value per line. Files are read line by line, so they may be of any size.
#include <memory>
#include <optional>
#include <string>

#include "data/json.h"

namespace lockstep::data {

/// Reads a .jsonl file from start to end.
class JsonLines {
 public:
  /// `limits` apply to each line.
  explicit JsonLines(const std::string& path, JsonLimits limits = python_json);
  ~JsonLines();
  JsonLines(const JsonLines&) = delete;

  /// The value of the next line that is not blank, or none at the end of the file. Errors name file, line and column:
  /// "a.jsonl:7:12: ...".
  std::optional<Json> next();
  /// Number of the line that next() returned last, counted from 1.
  int64_t line() const { return line_; }

 private:
  struct File;
  std::string path_;
  JsonLimits limits_;
  std::unique_ptr<File> file_;
  std::string buffer_;  // read from the file; [at_, end) is not yet returned
  size_t at_ = 0;
  int64_t line_ = 0;
};

}  // namespace lockstep::data
