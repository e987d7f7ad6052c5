#pragma once
// CSV (RFC 4180): lines of fields separated by a delimiter. Quoted fields may contain delimiters, newlines and doubled
// quotes. The numbers become one tensor with a row for each line.
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::data {

/// Options of read_csv().
struct CsvOptions {
  char delimiter = ',';
  bool header = true;  ///< true: the first line names the columns
  /// Names of the columns to read, in this order; empty reads all. Columns that are not read may contain text.
  std::vector<std::string> columns = {};
  bool empty_is_nan = false;  ///< true: an empty field becomes NaN (f32 and f64 only); false: it is an Error
  DType dtype = f32;          ///< f32, f64 or i64
};

/// A table of numbers.
struct Csv {
  std::vector<std::string> columns;  ///< names of the columns; empty without a header
  Tensor values;                     ///< (rows, columns), on the CPU
  /// A view of one column, of shape (rows). For an unknown name, the Error lists the first columns.
  Tensor column(std::string_view name) const;
};

/// Reads a CSV file. Blank lines, and blanks around numbers, are ignored. Error if a line has more or fewer fields
/// than the first, a field is not a number, a number does not fit the dtype, or a quote is not closed. The Error names
/// file and line.
Csv read_csv(const std::string& path, const CsvOptions& options = {});
/// read_csv() of text in memory. Errors begin with `origin`.
Csv parse_csv(std::string_view text, const std::string& origin, const CsvOptions& options = {});

}  // namespace lockstep::data
