// Reads CSV files. See csv.h.
#include "extensions/files/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>

#include "data/excerpt.h"
#include "data/files.h"

namespace lockstep::data {
namespace {

/// Reads a text record by record, with the line number at which each begins.
class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& origin, char delimiter)
      : rest_(text), origin_(origin), delimiter_(delimiter) {
    if (rest_.starts_with("\xef\xbb\xbf")) rest_.remove_prefix(3);  // byte order mark
  }

  /// Reads the next record that is not blank. False at the end.
  bool next() {
    while (skip_blank_line()) {}
    if (rest_.empty()) return false;
    line_ = next_line_;
    count_ = 0;
    do add_field();
    while (take(delimiter_));
    end_line();
    return true;
  }
  size_t count() const { return count_; }
  const std::string& field(size_t i) const { return fields_[i]; }
  int64_t line() const { return line_; }
  std::string where() const { return str("[csv] ", origin_, ":", line_); }

 private:
  bool take(char c) {
    if (!rest_.starts_with(c)) return false;
    return rest_.remove_prefix(1), true;
  }
  /// Skips a line that holds only spaces and tabs (unless those are the delimiter). The last line needs no newline.
  bool skip_blank_line() {
    size_t end = 0;
    while (end < rest_.size() && rest_[end] != delimiter_ && (rest_[end] == ' ' || rest_[end] == '\t')) ++end;
    const std::string_view behind = rest_.substr(end);
    if (rest_.empty() || !(behind.empty() || behind.starts_with('\n') || behind.starts_with("\r\n"))) return false;
    rest_ = behind;
    end_line();
    return true;
  }
  void end_line() {
    if (rest_.starts_with("\r\n")) rest_.remove_prefix(1);
    if (take('\n')) ++next_line_;
  }
  void add_field() {
    if (count_ == fields_.size()) fields_.emplace_back();
    std::string& field = fields_[count_++];
    if (!rest_.starts_with('"')) {
      size_t end = 0;
      while (end < rest_.size() && rest_[end] != delimiter_ && rest_[end] != '\n') ++end;
      const bool cut = end < rest_.size() && rest_[end] == '\n' && end > 0 && rest_[end - 1] == '\r';
      field.assign(rest_.substr(0, cut ? end - 1 : end));
      rest_.remove_prefix(cut ? end - 1 : end);
      LOCKSTEP_CHECK(field.find('\r') == field.npos, where(),
                     ": expected lines that end in \\n or \\r\\n, got \\r alone; convert the line endings");
      return;
    }
    field.clear();
    bool doubled = false;
    do {  // each pass reads up to a quote; a doubled quote continues the field
      rest_.remove_prefix(1);
      const size_t end = rest_.find('"');
      LOCKSTEP_CHECK(end != rest_.npos, where(), ": expected a closing quote for field ", count_,
                     ", got the end of the file; add the quote that is missing");
      if (doubled) field += '"';
      field += rest_.substr(0, end);
      next_line_ += std::count(rest_.begin(), rest_.begin() + std::ptrdiff_t(end), '\n');
      rest_.remove_prefix(end + 1);
      doubled = rest_.starts_with('"');
    } while (doubled);
    LOCKSTEP_CHECK(rest_.empty() || rest_[0] == delimiter_ || rest_[0] == '\n' || rest_.starts_with("\r\n"), where(),
                   ": expected '", delimiter_, "' or the end of the line after the quote that closes field ", count_,
                   ", got '", excerpt(rest_.substr(0, 1)), "'; double quotes that belong to the field");
  }

  std::string_view rest_;
  const std::string& origin_;
  char delimiter_;
  int64_t line_ = 1, next_line_ = 1;
  std::vector<std::string> fields_;  // the first count_ belong to this record; the strings are reused
  size_t count_ = 0;
};

/// Index of the column `name`. Error unless there is exactly one.
size_t column_of(const std::vector<std::string>& columns, std::string_view name, const std::string& where) {
  const auto found = std::find(columns.begin(), columns.end(), name);
  std::string known;
  for (size_t i = 0; i < std::min<size_t>(columns.size(), 20); ++i) known += (i ? ", " : "") + excerpt(columns[i]);
  LOCKSTEP_CHECK(found != columns.end(), where, ": expected one of the columns ", known,
                 columns.size() > 20 ? ", ..." : "", ", got \"", excerpt(name), "\"; use a name of the header");
  LOCKSTEP_CHECK(std::find(found + 1, columns.end(), name) == columns.end(), where, ": expected one column \"",
                 excerpt(name), "\", got several; rename the others");
  return size_t(found - columns.begin());
}

template <class T> T number_of(const std::string& field, bool empty_is_nan, const auto& where) {
  std::string_view text = field;
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  text = text.substr(0, text.find_last_not_of(" \t") + 1);
  if (text.empty() && empty_is_nan) return std::numeric_limits<T>::quiet_NaN();  // parse_csv() has refused i64
  LOCKSTEP_CHECK(!text.empty(), where(), ": expected a number, got an empty field; fill it in, or set empty_is_nan");
  const char* const begin = text.data() + (text.size() > 1 && text[0] == '+' && text[1] != '-');
  const char* const end = text.data() + text.size();
  using Read = std::conditional_t<std::is_same_v<T, int64_t>, int64_t, double>;
  Read value{};
  const auto [at, error] = std::from_chars(begin, end, value);
  LOCKSTEP_CHECK(at == end && error != std::errc::invalid_argument, where(), ": expected ",
                 std::is_same_v<T, int64_t> ? "a whole number" : "a number", ", got \"", excerpt(field),
                 "\"; correct the field");
  LOCKSTEP_CHECK(error == std::errc() && std::isinf(double(T(value))) == std::isinf(double(value)), where(),
                 ": expected a number that fits ", dtype_of<T>, ", got ", excerpt(field),
                 "; choose another dtype, or correct the field");
  return T(value);
}

}  // namespace

Tensor Csv::column(std::string_view name) const {
  return values.select(1, int64_t(column_of(columns, name, "[csv] column()")));
}

Csv parse_csv(std::string_view text, const std::string& origin, const CsvOptions& options) {
  const std::string start = "[csv] " + origin;
  const char d = options.delimiter;
  LOCKSTEP_CHECK(d != '"' && d != '\n' && d != '\r' && d != '\0', start,
                 ": expected a delimiter other than a quote, the end of a line or 0, got byte ", int(uint8_t(d)));
  LOCKSTEP_CHECK(options.dtype == f32 || options.dtype == f64 || options.dtype == i64, start,
                 ": expected dtype f32, f64 or i64, got ", options.dtype);
  LOCKSTEP_CHECK(!options.empty_is_nan || options.dtype != i64, start,
                 ": expected f32 or f64 with empty_is_nan, got i64, which has no NaN");
  LOCKSTEP_CHECK(options.header || options.columns.empty(), start,
                 ": expected a header to find columns by name, got header = false; set it, or leave out columns");
  CsvReader reader(text, origin, d);
  bool more = reader.next();
  LOCKSTEP_CHECK(more, start, ": expected at least one line, got an empty file; give a file with lines");
  const size_t width = reader.count();
  const int64_t first = reader.line();

  Csv csv;
  std::vector<size_t> chosen;
  for (size_t i = 0; i < width; ++i) {
    chosen.push_back(i);
    if (options.header) csv.columns.push_back(reader.field(i));
  }
  if (!options.columns.empty()) {
    chosen.clear();
    for (const std::string& name : options.columns) chosen.push_back(column_of(csv.columns, name, reader.where()));
    csv.columns = options.columns;
  }
  if (options.header) more = reader.next();
  dispatch<float, double, int64_t>(options.dtype, "csv", [&]<class T> {
    const auto values = std::make_shared<std::vector<T>>();
    int64_t rows = 0;
    for (; more; more = reader.next(), ++rows) {
      LOCKSTEP_CHECK(reader.count() == width, reader.where(), ": expected ", width, " fields as in line ", first,
                     ", got ", reader.count(), "; correct the line, or the delimiter");
      for (size_t i = 0; i < chosen.size(); ++i) {
        const auto where = [&] {
          return csv.columns.empty() ? str(reader.where(), ": field ", chosen[i] + 1)
                                     : str(reader.where(), ": column \"", excerpt(csv.columns[i]), "\"");
        };
        values->push_back(number_of<T>(reader.field(chosen[i]), options.empty_is_nan, where));
      }
    }
    const int64_t bytes = int64_t(values->size() * sizeof(T));
    const Shape shape{rows, int64_t(chosen.size())};
    Ref<Storage> storage = bytes ? Storage::adopt(values->data(), bytes, cpu, [values] {}) : Storage::allocate(0, cpu);
    csv.values = Tensor(std::move(storage), 0, shape, contiguous_strides(shape), options.dtype);
  });
  return csv;
}

Csv read_csv(const std::string& path, const CsvOptions& options) {
  return parse_file(path, [&](Bytes file, const std::string& origin) {
    return parse_csv({reinterpret_cast<const char*>(file.data()), file.size()}, origin, options);
  });
}

}  // namespace lockstep::data
