// --precision fp8, which the extension adds.
#include <doctest/doctest.h>

#include "extensions/fp8/section.h"
#include "train/job.h"

using namespace lockstep;

TEST_CASE("precision: fp8 sets its key, and the configuration decides about bf16") {
  for (const bool has_bf16 : {true, false}) {
    train::TrainOptions o;
    o.steps = 1, o.precision = "fp8", o.given = {"precision"};
    if (!has_bf16) o.set = {"bf16.enabled=false"};
    train::start(o, "", [&](train::TrainJob& job) {
      const engine::Config made = job.config();
      CHECK(made.section<engine::Fp8Config>().enabled);
      CHECK(made.bf16.enabled == has_bf16);
    });
  }
}
