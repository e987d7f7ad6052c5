// Training steps of adapters on quantized weights, recorded as graphs and replayed.
#include <doctest/doctest.h>

#include "extensions/lora/low_rank.h"
#include "extensions/quantization/quantize.h"
#include "tests/cuda/graph_training.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("cuda: steps of adapters beside codes are replayed with the same bits") {
  const auto on_codes = [](nn::GPT& m) {
    nn::quantize(m, {.format = QuantFormat::group4});
    nn::add_lora(m, {.r = 2});
  };
  check_replayed({.prepare = on_codes});
  nn::GPT::Options longer = Plan().model;
  longer.context = 24;
  check_replayed({.model = longer, .lengths = {24}, .prepare = on_codes});
}
