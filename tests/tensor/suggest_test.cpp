// Names that are near a misspelt one.
#include <doctest/doctest.h>

#include "tensor/suggest.h"

using namespace lockstep;

TEST_CASE("the nearest known name is suggested, when it is near") {
  const std::vector<std::string> known = {"ring", "direct", "tree", "halving_doubling", "ringer"};
  struct Row {
    const char *word, *expected;
  };
  const Row rows[] = {
      {"rign", "ring"},       {"rin", "ring"},       {"rings", "ring"},
      {"ringe", "ring"},      {"ringers", "ringer"}, {"ring", "ring"},  // of equally near ones the first
      {"tre", "tree"},        {"t", nullptr},        {"te", "tree"},
      {"butterfly", nullptr}, {"", nullptr},         {"halfing_doublin", "halving_doubling"},
      {"doubling", nullptr},  {"halving", nullptr},  {"DIRECT", nullptr},
      {"direkt", "direct"},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.word));
    CHECK(suggestion(row.word, known) == (row.expected ? std::string("; did you mean ") + row.expected + "?" : ""));
  }
  CHECK(suggestion("x", {}).empty());
  CHECK(suggestion(std::string(1000, 'a'), {std::string(1000, 'b')}).empty());
}
