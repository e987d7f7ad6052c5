// Numbers are read and written in the C locale, whatever locale the program has set. tests/locales.py runs whole suites
// in other locales.
#include "base/classic_text.h"

#include <doctest/doctest.h>

#include <climits>
#include <cmath>
#include <locale>
#include <sstream>

#include "tensor/ops.h"
#include "tests/devices.h"

using namespace lockstep;

namespace {

/// Punctuation of de_DE, without a locale of the system.
struct Commas final : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

struct GlobalCommas {
  GlobalCommas() : before(std::locale::global(std::locale(std::locale(), new Commas))) {}
  ~GlobalCommas() { std::locale::global(before); }
  const std::locale before;
};

}  // namespace

TEST_CASE("classic: numbers that people write") {
  const struct {
    const char* text;
    double value;  // NaN: not a number
  } rows[] = {{"0.5", 0.5},      {"+0.5", 0.5}, {"-1e-3", -1e-3}, {"1e310", NAN},   {"5e-324", 5e-324},
              {"inf", HUGE_VAL}, {"", NAN},     {"0,5", NAN},     {"1.5x", NAN},    {" 1", NAN},
              {"+-1", NAN},      {"++1", NAN},  {"0x1p3", NAN},   {"1.234", 1.234}, {"1234567", 1234567}};
  const auto check = [&] {
    for (const auto& row : rows) {
      CAPTURE(std::string(row.text));
      const auto read = read_number<double>(row.text);
      CHECK(read.has_value() == !std::isnan(row.value));
      if (read) CHECK(*read == row.value);
    }
    CHECK(read_number<int>("2147483647") == INT_MAX);
    CHECK(!read_number<int>("2147483648"));
    CHECK(!read_number<int>("1.5"));
    CHECK(!read_number<int>("+1"));
  };
  check();
  const GlobalCommas commas;
  check();
}

TEST_CASE("classic: numbers that we write") {
  const OnCpu on_cpu;
  const GlobalCommas commas;
  CHECK(str(1234567, ' ', 0.5, ' ', 1e-9, ' ', Shape{12345, 2}) == "1234567 0.5 1e-09 (12345, 2)");
  std::ostringstream with_commas;
  with_commas << Shape{1234, 2};
  CHECK(with_commas.str() == "(1234, 2)");
  CHECK(format("%.2f %d%%", 0.125, 1234567) == "0.12 1234567%");
  std::string long_text(1000, ' ');
  long_text.back() = 'x';
  CHECK(format("%*s", 1000, "x") == long_text);
  CHECK(to_string(Tensor::from({0.5f, 1.25f}, {2})) == "[0.50, 1.25]");
  CHECK(to_string(Tensor::from({0.5f, 12345.f}, {2})) == "[5.0000e-01, 1.2345e+04]");
}

TEST_CASE("classic: only ASCII letters count as letters") {
  for (int c = CHAR_MIN; c <= CHAR_MAX; ++c) {
    CHECK(is_letter(char(c)) == ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')));
    CHECK(is_digit(char(c)) == (c >= '0' && c <= '9'));
  }
}
