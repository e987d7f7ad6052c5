#pragma once
// JSON Lines (jsonlines.org): a value of JSON in each line. Read line by line, so a file may be of any size.
#include <memory>
#include <optional>
#include <string>

#include "data/json.h"

namespace lockstep::data {

class JsonLines {
 public:
  /// `limits` are of each line.
  explicit JsonLines(const std::string& path, JsonLimits limits = python_json);
  ~JsonLines();
  JsonLines(const JsonLines&) = delete;

  /// The value of the next line, blank lines left out; nothing at the end. Errors name file, line and column:
  /// "a.jsonl:7:12: ...".
  std::optional<Json> next();
  /// The number, from 1, of the line that next() gave last.
  int64_t line() const { return line_; }

 private:
  struct File;
  std::string path_;
  JsonLimits limits_;
  std::unique_ptr<File> file_;
  std::string buffer_;  // read, and not yet given from `at_` on
  size_t at_ = 0;
  int64_t line_ = 0;
};

}  // namespace lockstep::data
