// --precision fp8, which the extension adds.
#include <doctest/doctest.h>

#include "extensions/fp8/section.h"
#include "tests/messages.h"
#include "train/job.h"

using namespace lockstep;

TEST_CASE("precision: fp8 sets its key, and the configuration decides about bf16") {
  const auto config = [](const std::string& precision, const std::vector<std::string>& set,
                         const std::function<void(const engine::Config&)>& check = {}) {
    train::TrainOptions o;
    o.steps = 1, o.precision = precision, o.given = {"precision"}, o.set = set;
    return message([&] {
      train::start(o, "", [&](train::TrainJob& job) {
        const engine::Config made = job.config();
        if (check) check(made);
      });
    });
  };
  CHECK(config("fp8", {"bf16.enabled=false"}, [](const engine::Config& c) {
          CHECK(c.section<engine::Fp8Config>().enabled);
          CHECK_FALSE(c.bf16.enabled);
        }) == "(no error)");
  CHECK(config("fp8", {}, [](const engine::Config& c) {
          CHECK(c.section<engine::Fp8Config>().enabled);
          CHECK(c.bf16.enabled);
        }) == "(no error)");
  CHECK(contains(config("bf16", {"fp8.enabled=true"}),
                 "--precision bf16 contradicts the configuration, where fp8.enabled is true"));
}
