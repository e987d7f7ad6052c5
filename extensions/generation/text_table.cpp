// Reads texts from JSON Lines, JSON lists and CSV. See text_table.h.
#include "extensions/generation/text_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "data/files.h"
#include "extensions/generation/json_lines.h"

namespace lockstep::data {

namespace {

constexpr const char *column_name = "text", *advice = "; write a column named text";

/// Collects the texts of rows that are JSON objects. The first row decides about the column.
class JsonRows {
 public:
  void add(const Json& row, const std::string& where) {
    LOCKSTEP_CHECK(row.is_object() && !row.as_object().empty(), where,
                   ": expected an object such as {\"text\": ...}, got ", row.kind(), advice);
    if (column_.empty()) column_ = row.find(column_name) ? column_name : row.as_object()[0].first;
    const Json* const value = row.find(column_);
    LOCKSTEP_CHECK(value && value->is_string(), where, ": expected a text under the key ", column_, ", got ",
                   value ? value->kind() : "none", advice);
    texts.push_back(value->as_string());
  }
  std::vector<std::string> texts;

 private:
  std::string column_;
};

/// True if the first character of a file, after blanks, is '['.
bool is_list(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != text.npos && text[first] == '[';
}

}  // namespace

bool is_text_table(const std::string& path) {
  return path.ends_with(".json") || path.ends_with(".jsonl") || path.ends_with(".csv");
}

std::vector<std::vector<std::string>> parse_text_csv(const std::string& text, const std::string& origin) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::string field;
  int64_t line = 1, begun = 1;  // begun: the line on which the row begins
  bool quoted = false, was_quoted = false;
  const auto end_field = [&] { row.push_back(std::exchange(field, {})), was_quoted = false; };
  const auto end_row = [&] {
    if (row.empty() && field.empty() && !was_quoted) return;  // a blank line
    end_field();
    LOCKSTEP_CHECK(rows.empty() || row.size() == rows[0].size(), origin, ":", begun, ": expected ", rows[0].size(),
                   " fields, as in the first row, got ", row.size(), "; quote fields that contain commas");
    rows.push_back(std::exchange(row, {}));
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (quoted) {
      if (c != '"') field += c;
      else if (i + 1 < text.size() && text[i + 1] == '"') field += text[++i];
      else quoted = false;
    } else if (c == '"' && field.empty() && !was_quoted) quoted = was_quoted = true;
    else if (c == ',') end_field();
    else if (c == '\n' || (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n')) {
      if (c == '\n') end_row(), begun = line;
    } else field += c;
  }
  LOCKSTEP_CHECK(!quoted, origin, ":", begun,
                 ": expected a quote that closes the field, got the end of the file; "
                 "write \" within a field as \"\"");
  end_row();
  return rows;
}

std::vector<std::string> read_text_table(const std::string& path, JsonLimits limits) {
  std::vector<std::string> texts;
  if (path.ends_with(".csv")) {
    std::string content = read_file(path, INT64_MAX);
    if (content.starts_with("\xEF\xBB\xBF")) content.erase(0, 3);
    const auto rows = parse_text_csv(content, path);
    LOCKSTEP_CHECK(!rows.empty(), path, ": expected a first row with the names of columns, got an empty file", advice);
    const auto column = std::ranges::find(rows[0], column_name);
    const size_t at = column == rows[0].end() ? 0 : size_t(column - rows[0].begin());
    for (size_t i = 1; i < rows.size(); ++i) texts.push_back(rows[i][at]);
  } else {
    JsonRows rows;
    if (std::string content = path.ends_with(".json") ? read_file(path, INT64_MAX) : ""; is_list(content)) {
      limits.bytes = INT64_MAX;
      const Json list = parse_json(content, path, limits);
      for (size_t i = 0; i < list.as_array().size(); ++i) rows.add(list.as_array()[i], str(path, ": row ", i + 1));
    } else {
      JsonLines lines(path, limits);
      while (const auto row = lines.next()) rows.add(*row, str(path, ":", lines.line()));
    }
    texts = std::move(rows.texts);
  }
  LOCKSTEP_CHECK(!texts.empty(), path, ": expected at least one row, got none; give a table with texts");
  return texts;
}

}  // namespace lockstep::data
