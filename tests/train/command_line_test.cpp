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
  struct Row {
    std::vector<std::string> words;
    std::string values;  ///< in the program's body; "": the command line is refused, and the body does not run
  };
  for (const Row& row : {
           Row{{}, "0 3 4 5 0.5 0.25 a 0"},
           Row{{"--flag", "-c", "7", "--large", "9000000000"}, "1 7 9000000000 5 0.5 0.25 a 0"},
           Row{{"--natural", "0", "--part", "0.125", "--rate", "1e-3"}, "0 3 4 0 0.125 0.001 a 0"},
           Row{{"--word", "b", "--words", "x", "--words", "y", "--seed", "3"}, "0 3 4 5 0.5 0.25 b 2"},
           Row{{"--count", "3000000000"}, ""},  // beyond an int
           Row{{"--natural", "-1"}, ""}, Row{{"--rate", "2"}, ""}, Row{{"--rate", "nan"}, ""}, Row{{"--word", "c"}, ""},
           Row{{"--depth", "1"}, ""}, Row{{"--batch", "0"}, ""},  // an option of all programs
       }) {
    CAPTURE(row.words.size() > 0 ? row.words[0] : "");
    std::vector<std::string> words{"program"};
    words.insert(words.end(), row.words.begin(), row.words.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    bool flag = false;
    int count = 3;
    int64_t large = 4;
    uint64_t natural = 5;
    float part = 0.5F;
    double rate = 0.25;
    std::string word = "a", found;
    std::vector<std::string> list;
    const int code = train::program(int(argv.size()), argv.data(), "a test",
                                    {{"--flag", &flag},
                                     {"-c,--count", &count, "an int"},
                                     {"--large", &large, "a number", train::integer(1, INT64_MAX)},
                                     {"--natural", &natural},
                                     {"--part", &part},
                                     {"--rate", &rate, "a rate", train::number(0, 1)},
                                     {"--word", &word, "a word", train::one_of({"a", "b"})},
                                     {"--words", &list}},
                                    [&](train::TrainJob&) {
                                      found = str(flag, " ", count, " ", large, " ", natural, " ", part, " ", rate, " ",
                                                  word, " ", list.size());
                                    });
    CHECK(found == row.values);
    CHECK(code == (row.values.empty() ? 2 : 0));
  }
  char name[] = "program";
  char* argv[] = {name, nullptr};
  int64_t own = 1;
  const auto code_of = [&](const train::ProgramOption& option) {
    return train::program(1, argv, "a test", {option}, [](train::TrainJob&) {});
  };
  CHECK(code_of({"--steps", &own, "steps"}) == 2);  // all training programs have this one
  CHECK(code_of({"--own", &own, "required", {}, true}) == 2);
  CHECK(code_of({"--own", &own}) == 0);
}
