// Reads JSON Lines files. See json_lines.h.
#include "extensions/generation/json_lines.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::data {

JsonLines::JsonLines(const std::string& path, JsonLimits limits)
    : path_(path),
      limits_(limits),
      file_(MappedFile::open(path)),
      rest_(reinterpret_cast<const char*>(file_->bytes().data()), file_->bytes().size()) {}

std::optional<Json> JsonLines::next() {
  while (!rest_.empty()) {
    const std::string_view line = rest_.substr(0, rest_.find('\n'));
    rest_.remove_prefix(std::min(line.size() + 1, rest_.size()));
    ++line_;
    LOCKSTEP_CHECK(int64_t(line.size()) <= limits_.bytes, path_, ":", line_, ": expected a line of at most ",
                   limits_.bytes, " bytes, got more; split it, or raise JsonLimits::bytes");
    if (line.find_first_not_of(" \t\r") != line.npos) return parse_json_line(line, path_, line_, limits_);
  }
  file_->check();
  return {};
}

}  // namespace lockstep::data
