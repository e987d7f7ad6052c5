// Texts of messages and tables: the nearest name, plurals, quantities.
#include <doctest/doctest.h>

#include "base/quantity.h"
#include "base/suggest.h"

using namespace lockstep;

TEST_CASE("the nearest known name is suggested, when it is near") {
  const std::vector<std::string> known = {"ring", "direct", "tree", "halving_doubling", "ringer"};
  struct Row {
    const char *word, *expected;
  };
  // Where several names are equally near, as to "ringe", the first one counts.
  const Row rows[] = {
      {"rign", "ring"},      {"rin", "ring"},        {"rings", "ring"},   {"ringe", "ring"},
      {"ringers", "ringer"}, {"ring", "ring"},       {"tre", "tree"},     {"t", nullptr},
      {"te", "tree"},        {"butterfly", nullptr}, {"", nullptr},       {"halfing_doublin", "halving_doubling"},
      {"doubling", nullptr}, {"halving", nullptr},   {"DIRECT", nullptr}, {"direkt", "direct"}};
  for (const Row& row : rows) {
    CAPTURE(std::string(row.word));
    CHECK(suggestion(row.word, known) == (row.expected ? std::string("; did you mean ") + row.expected + "?" : ""));
  }
  CHECK(suggestion("x", {}).empty());
  CHECK(suggestion(std::string(1000, 'a'), {std::string(1000, 'b')}).empty());
}

TEST_CASE("numbers of things, and parts of a text") {
  CHECK(counted(1, "rank") == "1 rank");
  CHECK(counted(0, "rank") == "0 ranks");
  CHECK(counted(3, "micro-batch") == "3 micro-batches");
  CHECK(split("a,,b", ',') == std::vector<std::string>{"a", "", "b"});
  CHECK(split("", ',') == std::vector<std::string>{""});
  CHECK(split("a,", ',') == std::vector<std::string>{"a", ""});
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
