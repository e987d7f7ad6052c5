// Reads JSON Lines files. See json_lines.h.
#include "data/json_lines.h"

#include "data/json_events.h"
#include "data/open_file.h"

namespace lockstep::data {

struct JsonLines::File : OpenFile {};

JsonLines::JsonLines(const std::string& path, JsonLimits limits)
    : path_(path), limits_(limits), file_(std::make_unique<File>()) {
  open_regular(*file_, path, INT64_MAX);
}

JsonLines::~JsonLines() = default;

std::optional<Json> JsonLines::next() {
  const auto check_size = [&](size_t bytes, int64_t line) {
    LOCKSTEP_CHECK(int64_t(bytes) <= limits_.bytes, path_, ":", line, ": expected a line of at most ", limits_.bytes,
                   " bytes, got more; split it, or raise JsonLimits::bytes");
  };
  while (true) {
    size_t end = buffer_.find('\n', at_);
    while (end == buffer_.npos) {
      buffer_.erase(0, std::exchange(at_, 0));
      check_size(buffer_.size(), line_ + 1);
      const size_t known = buffer_.size();
      if (!append_next(*file_, buffer_, 1 << 16, path_)) break;
      end = buffer_.find('\n', known);
    }
    if (end == buffer_.npos && buffer_.empty()) return {};
    const std::string_view line = std::string_view(buffer_).substr(at_, end - at_);
    at_ = end == buffer_.npos ? buffer_.size() : end + 1;
    check_size(line.size(), ++line_);
    if (line.find_first_not_of(" \t\r") != line.npos) return parse_json_line(line, path_, line_, limits_);
  }
}

}  // namespace lockstep::data
