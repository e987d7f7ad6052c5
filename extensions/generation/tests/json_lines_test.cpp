// JSON Lines: reading one by one, and damaged lines.
#include "extensions/generation/json_lines.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace lockstep::data;
using testing::TempDir;

TEST_CASE("json lines: one by one, with the numbers of lines") {
  TempDir dir;
  const std::string long_text(100'000, 'x');  // longer than the read buffer
  JsonLines lines(dir.write("a.jsonl", "{\"a\": 1}\r\n\n  \n[2, \"" + long_text + "\"]\nnull\n\"last\""));
  CHECK(lines.next()->at("a").as_int() == 1);
  CHECK(lines.line() == 1);
  CHECK(lines.next()->as_array()[1].as_string() == long_text);
  CHECK(lines.line() == 4);
  CHECK(lines.next()->is_null());
  CHECK(lines.next()->as_string() == "last");
  CHECK(lines.line() == 6);
  CHECK(!lines.next());
  CHECK(!lines.next());
  CHECK(!JsonLines(dir.write("empty", "")).next());
  JsonLines python(dir.write("p.jsonl", "{\"x\": NaN, \"id\": 18446744073709551615}\n"));  // pandas writes this
  const auto row = python.next();
  CHECK(std::isnan(row->at("x").as_number()));
  CHECK(row->at("id").as_number() == 0x1p64);

  std::string many;
  for (int i = 0; i < 30'000; ++i) many += std::to_string(i) + "\n";
  JsonLines numbers(dir.write("many", many));
  int64_t sum = 0;
  while (const auto value = numbers.next()) sum += value->as_int() - numbers.line() + 1;
  CHECK(sum == 0);
  CHECK(numbers.line() == 30'000);

  const std::pair<std::string, const char*> rows[] = {
      {"{}\n{\"a\": 1, \"a\": 2}\n", ":2:13: key \"a\" appears twice"},
      {"1\n\n[1, 2\n", ":3:6: syntax error"},
      {"1\n1 2\n", ":2:3: syntax error"},
      {"1\n" + std::string(1, '\0'), ":2:1: unexpected zero byte"},
      {"1\n[[[1]]]", ":2:4: nested deeper than 2 levels"},
      {"1\n\"" + std::string(70, 'x') + "\"\n", ":2: expected a line of at most 64 bytes, got more"},
      {"1\n\"" + std::string(200'000, 'x'), ":2: expected a line of at most 64 bytes, got more"},
  };
  for (const auto& [text, said] : rows) {
    CAPTURE(said);
    const std::string path = dir.write("bad.jsonl", text);
    JsonLines bad(path, {.bytes = 64, .depth = 2});
    CHECK(bad.next());
    CHECK_ERROR(bad.next(), path + said);
  }
  CHECK_ERROR(JsonLines(dir / "none"), "No such file");
}
