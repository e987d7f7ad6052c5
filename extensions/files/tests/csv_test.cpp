// CSV: files that become tensors, and files that are rejected.
#include "extensions/files/csv.h"

#include <cmath>

#include "data/files.h"
#include "tests/data/util.h"

using namespace lockstep;
using namespace lockstep::data;

TEST_CASE("csv: numbers are read into a tensor") {
  const std::string text =
      "\xef\xbb\xbf"
      "id,\"a, b\",text,\"say \"\"x\"\"\"\r\n1, 2.5 ,one,-3e2\r\n\r\n+4,\"5\",\"two\nlines\",inf";
  const Csv some = parse_csv(text, "f", {.columns = {"say \"x\"", "id", "a, b"}});
  CHECK(some.columns == std::vector<std::string>{"say \"x\"", "id", "a, b"});
  CHECK(some.values.dtype() == f32);
  CHECK(some.values.shape() == Shape{2, 3});
  CHECK(some.values.to_vector<double>() == std::vector<double>{-300, 1, 2.5, INFINITY, 4, 5});
  CHECK(some.column("a, b").to_vector<double>() == std::vector<double>{2.5, 5});
  CHECK_ERROR(some.column("x"), "expected one of the columns say \"x\", id, a, b, got \"x\"");

  const Csv plain = parse_csv("1;2\n3;4\n", "f", {.delimiter = ';', .header = false, .dtype = i64});
  CHECK(plain.columns.empty());
  CHECK(plain.values.to_vector<int64_t>() == std::vector<int64_t>{1, 2, 3, 4});
  CHECK(parse_csv("9223372036854775807", "f", {.header = false, .dtype = i64}).values.item<int64_t>() == INT64_MAX);
  CHECK(parse_csv("0.1", "f", {.header = false, .dtype = f64}).values.item() == 0.1);
  CHECK(parse_csv("a,b", "f").values.shape() == Shape{0, 2});
  const auto gaps = parse_csv("a,b\n,1\n\"\", \n", "f", {.empty_is_nan = true}).values.to_vector<double>();
  CHECK(std::isnan(gaps[0]));
  CHECK(gaps[1] == 1);
  CHECK((std::isnan(gaps[2]) && std::isnan(gaps[3])));

  TempDir dir;
  CHECK(read_csv(dir.write("a.csv", "x\ty\n1\t2\n"), {.delimiter = '\t'}).column("y").item() == 2);
  CHECK_ERROR(read_csv(dir.write("b.csv", "x\n1\nz\n")),
              "[csv] " + dir / "b.csv" + ":3: column \"x\": expected a number, got \"z\"");
}

TEST_CASE("csv: lines of blanks are left out, as empty ones are") {
  CHECK(parse_csv("a,b\n1,2\n \n3,4\n", "f").values.to_vector<double>() == std::vector<double>{1, 2, 3, 4});
  CHECK(parse_csv(" \t\r\n\na\n1\n\t \n2\n  ", "f").values.to_vector<double>() == std::vector<double>{1, 2});
  CHECK(parse_csv("1\n \n2", "f", {.header = false, .empty_is_nan = true}).values.numel() == 2);
  // If tabs are the delimiter, a lone tab is a record of two empty fields.
  const CsvOptions tabs{.delimiter = '\t', .header = false, .empty_is_nan = true};
  CHECK(parse_csv("1\t2\n \t\n \n", "f", tabs).values.shape() == Shape{2, 2});
  CHECK_ERROR(parse_csv("a,b\n1,2\n \n3\n", "f"), "[csv] f:4: expected 2 fields as in line 1, got 1");
}

TEST_CASE("csv: damaged files are rejected, with the line") {
  const CsvOptions bare{.header = false}, integers{.header = false, .dtype = i64};
  const struct {
    std::string text;
    CsvOptions options;
    const char* message;
  } rows[] = {
      {"", {}, ": expected at least one line, got an empty file"},
      {"\n\r\n", {}, ": expected at least one line, got an empty file"},
      {"a,b\n1,2\n1,2,3\n", {}, ":3: expected 2 fields as in line 1, got 3"},
      {"\na,b\n\n1,2\n1\n", {}, ":5: expected 2 fields as in line 2, got 1"},
      {"\"a\nb\"\n1\n1,2\n", {}, ":4: expected 1 fields as in line 1, got 2"},
      {"a,b\n1,2,\n", {}, ":2: expected 2 fields as in line 1, got 3"},
      {"1,x", bare, ":1: field 2: expected a number, got \"x\""},
      {"1,\"x\ny\"", bare, ":1: field 2: expected a number, got \"x?y\""},
      {"1,1.5.2", bare, ":1: field 2: expected a number, got \"1.5.2\""},
      {"1,+-2", bare, ":1: field 2: expected a number, got \"+-2\""},
      {"1,0x10", bare, ":1: field 2: expected a number, got \"0x10\""},
      {"a,b\n1,\n", {}, ":2: column \"b\": expected a number, got an empty field; fill it in, or set empty_is_nan"},
      {"1.0", integers, ":1: field 1: expected a whole number, got \"1.0\""},
      {"9223372036854775808", integers, ":1: field 1: expected a number that fits i64, got 9223372036854775808"},
      {"1e39", bare, ":1: field 1: expected a number that fits f32, got 1e39"},
      {"1e999", bare, ":1: field 1: expected a number that fits f32, got 1e999"},
      {"1\n\"2\n3", bare, ":2: expected a closing quote for field 1, got the end of the file"},
      {"1,\"2\"3", bare, ":1: expected ',' or the end of the line after the quote that closes field 2, got '3'"},
      {"1\r2", bare, ":1: expected lines that end in \\n or \\r\\n, got \\r alone"},
      {"a,b\n1,2", {.columns = {"c"}}, ":1: expected one of the columns a, b, got \"c\""},
      {"a,a\n1,2", {.columns = {"a"}}, ":1: expected one column \"a\", got several"},
      {"1,2", {.header = false, .columns = {"a"}}, ": expected a header to find columns by name"},
      {"1", {.delimiter = '"'}, ": expected a delimiter other than a quote, the end of a line or 0, got byte 34"},
      {"1", {.dtype = i32}, ": expected dtype f32, f64 or i64, got i32"},
      {"1", {.empty_is_nan = true, .dtype = i64}, ": expected f32 or f64 with empty_is_nan"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    CHECK_ERROR(parse_csv(row.text, "f", row.options), std::string("[csv] f") + row.message);
  }
}
