// Options of commands that generate. tests/locales.py also runs this in locales with a decimal comma.
#include <doctest/doctest.h>
#include <CLI/CLI.hpp>

#include "extensions/generation/prompt.h"
#include "tests/messages.h"

using namespace lockstep;

TEST_CASE("command line: numbers for generation are read in the C locale, whatever the program's locale") {
  CLI::App app;
  nn::Generation generation = train::sampling_defaults();
  train::add_generation_options(app, generation);
  CHECK(contains(app.help(), "0.8"));
  app.parse("--temperature 1.5 --top-p 0.75");
  CHECK(generation.temperature == 1.5);
  CHECK(generation.top_p == 0.75);
  const char* const wrong[] = {"--temperature 0,5", "--temperature nan", "--top-p 0x1p-1"};
  for (const char* line : wrong) {
    CAPTURE(std::string(line));
    CHECK_THROWS_AS(app.parse(line), CLI::ValidationError);
  }
}
