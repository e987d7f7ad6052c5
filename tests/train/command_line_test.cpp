// Command lines of programs. tests/locales.py also runs this in locales with a decimal comma.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/messages.h"
#include "train/cli.h"
#include "train/job.h"
#include "train/optimizer.h"
#include "train/option_group.h"
#include "train/options.h"

using namespace lockstep;

TEST_CASE("command line: numbers are read in the C locale, whatever the program's locale") {
  CLI::App app;
  train::TrainOptions options;
  train::OptimizerOptions optimizer;
  train::add_options(app, options);
  train::add_optimizer_options(app, optimizer, true);
  int64_t large = 1234567;
  train::OptionGroup{app}("--large", large, "a number", train::integer(0, INT64_MAX));
  CHECK(contains(app.help(), "1234567"));
  app.parse("--lr 0.5:0.25 --optimizer adamw,beta1=0.5 --batch 12345");
  CHECK(optimizer.lr == 0.5);
  CHECK(optimizer.last_lr == 0.25);
  CHECK(optimizer.beta1 == 0.5);
  CHECK(options.batch == 12345);
  CHECK_THROWS_AS(app.parse("--batch 1.234"), CLI::ValidationError);
  CHECK_THROWS_AS(app.parse("--lr 0,5"), train::UsageError);
  CHECK(train::number(0, 1)("1,5") == "expected a number from 0 to 1, got '1,5'");
}

TEST_CASE("command line: a program with options of its own, without CLI11") {
  struct Values {
    bool flag = false;
    int count = 3;
    int64_t large = 4;
    uint64_t natural = 5;
    float part = 0.5F;
    double rate = 0.25;
    std::string word = "a";
    std::vector<std::string> words;
    friend bool operator==(const Values&, const Values&) = default;
  };
  struct Row {
    std::vector<std::string> words;
    int code;
    Values values;  ///< in the program's body, which runs if the code is 0
  };
  const Row rows[] = {
      {{}, 0, {}},
      {{"--flag", "-c", "7", "--large", "9000000000"}, 0, {.flag = true, .count = 7, .large = 9000000000}},
      {{"--natural", "0", "--part", "0.125", "--rate", "1e-3"}, 0, {.natural = 0, .part = 0.125F, .rate = 1e-3}},
      {{"--word", "b", "--words", "x", "--words", "y", "--seed", "3"}, 0, {.word = "b", .words = {"x", "y"}}},
      {{"--count", "3000000000"}, 2, {}},  // beyond an int
      {{"--count", "1.5"}, 2, {}},
      {{"--natural", "-1"}, 2, {}},
      {{"--rate", "2"}, 2, {}},
      {{"--rate", "nan"}, 2, {}},
      {{"--word", "c"}, 2, {}},
      {{"--depth", "1"}, 2, {}},
      {{"--batch", "0"}, 2, {}},  // an option of all programs
      {{"more"}, 2, {}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.words.size() > 0 ? row.words[0] : "");
    std::vector<std::string> words{"program"};
    words.insert(words.end(), row.words.begin(), row.words.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    Values v;
    bool ran = false;
    const int code = train::program(int(argv.size()), argv.data(), "a test",
                                    {{"--flag", &v.flag, "a flag"},
                                     {"-c,--count", &v.count, "an int"},
                                     {"--large", &v.large, "a number", train::integer(1, INT64_MAX)},
                                     {"--natural", &v.natural, "a natural number"},
                                     {"--part", &v.part, "a part"},
                                     {"--rate", &v.rate, "a rate", train::number(0, 1)},
                                     {"--word", &v.word, "a word", train::one_of({"a", "b"})},
                                     {"--words", &v.words, "words"}},
                                    [&](train::TrainJob&) { ran = true; });
    CHECK(code == row.code);
    CHECK(ran == (row.code == 0));
    if (ran) CHECK(v == row.values);
  }
  char name[] = "program";
  char* argv[] = {name, nullptr};
  int64_t own = 1;
  const auto code_of = [&](const train::ProgramOption& option) {
    return train::program(1, argv, "a test", {option}, [](train::TrainJob&) {});
  };
  CHECK(code_of({"--steps", &own, "steps"}) == 2);  // all training programs have this one
  CHECK(code_of({"--own", &own, "required", {}, true}) == 2);
  CHECK(code_of({"--own", &own, "not required"}) == 0);
}
