// Quantities with units and elements of SVG pictures, also where numbers are written with a comma.
#include "extensions/figures/figures.h"

#include <doctest/doctest.h>

using namespace lockstep;

TEST_CASE("pictures: texts cannot end an element") {
  CHECK(escaped("a<b>&\"\x01") == "a&lt;b&gt;&amp;&quot;\xef\xbf\xbd");
  CHECK(svg::text(1, 2, "<", 12, "red") ==
        "<text x=\"1\" y=\"2\" font-size=\"12\" fill=\"red\" text-anchor=\"start\">&lt;</text>\n");
}

TEST_CASE("pictures: numbers have a point") {
  CHECK(svg::rect(0.5, 1, 2, 3, "").find("x=\"0.5\"") != std::string::npos);
}

TEST_CASE("quantities for people") {
  const struct {
    double value;
    const char *seconds, *bytes;
  } rows[] = {{0, "0", "0 B"},          {1.5e-6, "1.5 us", "0 B"}, {0.0123, "12.3 ms", "0 B"},
              {1.234, "1.23 s", "1 B"}, {999, "999 s", "999 B"},   {123456, "123456 s", "123 KB"}};
  for (const auto& row : rows) {
    CHECK(seconds_text(row.value) == row.seconds);
    CHECK(bytes_text(row.value) == row.bytes);
  }
  CHECK(bytes_text(3.2e9) == "3.2 GB");
  CHECK(bytes_text(9.999e20) == "1e+06 PB");
}

TEST_CASE("quantities that people write") {
  const struct {
    const char* text;
    double value;  // -1: not a quantity
  } rows[] = {{"100MB", 1e8}, {"64 KiB", 65536}, {"5", 5},    {"1.5e3B", 1500}, {"", -1},      {"MB", -1},
              {"5q", -1},     {"-1B", -1},       {"nan", -1}, {"inf", -1},      {"5 MB ", -1}, {"2TiB", 0x1p41}};
  for (const auto& row : rows) {
    CAPTURE(std::string(row.text));
    CHECK(parse_quantity(row.text, byte_units).value_or(-1) == row.value);
  }
  CHECK(memory_text(1023) == "1023 bytes");
  CHECK(memory_text(1536) == "1.5 KiB");
  CHECK(memory_text(int64_t(3) << 50) == "3072.0 TiB");
}
