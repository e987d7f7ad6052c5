// --precision fp8, which the extension adds.
#include <doctest/doctest.h>

#include "extensions/fp8/section.h"
#include "tests/messages.h"
#include "train/job.h"

using namespace lockstep;

TEST_CASE("precision: fp8 sets its key, and the configuration decides about bf16") {
  const auto start = [](const std::string& precision, const std::vector<std::string>& set,
                        const std::function<void(const engine::Config&)>& check) {
    train::TrainOptions o;
    o.steps = 1, o.precision = precision, o.given = {"precision"}, o.set = set;
    train::start(o, "", [&](train::TrainJob& job) { check(job.config()); });
  };
  for (const bool has_bf16 : {true, false})
    start("fp8", has_bf16 ? std::vector<std::string>{} : std::vector<std::string>{"bf16.enabled=false"},
          [&](const engine::Config& c) {
            CHECK(c.section<engine::Fp8Config>().enabled);
            CHECK(c.bf16.enabled == has_bf16);
          });
  CHECK_ERROR(start("bf16", {"fp8.enabled=true"}, [](const engine::Config&) {}),
              "--precision bf16 contradicts the configuration, where fp8.enabled is true");
}
