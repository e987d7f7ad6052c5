#pragma once
// CSV (RFC 4180): lines of fields with a delimiter between them; quoted fields may hold delimiters, line ends and
// doubled quotes. Numbers become one tensor, a row a line.
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::data {

struct CsvOptions {
  char delimiter = ',';
  bool header = true;                ///< the first line names the columns
  std::vector<std::string> columns;  ///< the columns to read, in this order, by their names; none: all. Others may hold
                                     ///< text
  bool empty_is_nan = false;         ///< an empty field is NaN (f32 and f64 only); else it is an Error
  DType dtype = f32;                 ///< f32, f64 or i64
};

struct Csv {
  std::vector<std::string> columns;  ///< their names; empty without a header
  Tensor values;                     ///< (rows, columns), on the CPU
  /// A view (rows) of one column. Error lists the names when there is none of this name.
  Tensor column(std::string_view name) const;
};

/// Blank lines are left out, and blanks around numbers. Error, with file and line, for a line with more or fewer fields
/// than the first, a field that is no number, a number that does not fit the dtype, and a quote that is not closed.
Csv read_csv(const std::string& path, const CsvOptions& options = {});
/// The same from memory; `origin` opens the Errors.
Csv parse_csv(std::string_view text, const std::string& origin, const CsvOptions& options = {});

}  // namespace lockstep::data
