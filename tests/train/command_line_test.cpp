// Command lines of programs. tests/locales.py also runs this in locales with a decimal comma.
#include <doctest/doctest.h>

#include "tests/messages.h"
#include "train/cli.h"
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
