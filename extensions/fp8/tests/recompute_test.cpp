// Linears in fp8 inside a checkpoint: values, gradients and histories have the same bits as in the plain run.
#include <doctest/doctest.h>

#include <memory>

#include "extensions/fp8/scaling.h"
#include "tests/nn/properties.h"

using namespace lockstep;
using namespace lockstep::nn;

TEST_CASE("fp8: a forward that runs twice counts once") {
  const auto make = [] { return Sequential(Linear({.in = 16, .out = 32}), Tanh(), Linear({.in = 32, .out = 16})); };
  ::testing::check_recomputed({make, {16, 16}, bf16, [](Sequential& net) -> ::testing::AfterStep {
                                 return [fp8 = std::make_shared<Fp8Scaling>(net)](int, ::testing::NamedValues& values) {
                                   fp8->update();
                                   for (const auto& piece : fp8->state())
                                     values.emplace_back(piece.name + " history", piece.history.clone());
                                 };
                               }});
}
