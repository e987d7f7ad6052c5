// Texts of messages and tables: the nearest name, plurals.
#include <doctest/doctest.h>

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
