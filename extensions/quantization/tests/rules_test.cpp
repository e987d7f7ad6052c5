// The optimizers with 8-bit moments as rules. They have kernels for the CPU only.
#include <doctest/doctest.h>

#include "extensions/quantization/eight_bit.h"
#include "tests/devices.h"
#include "tests/optim/every_rule.h"

using namespace testing;

namespace {

const std::vector<Row> rules = {
    {"Adam8bit", [](auto p) { return std::make_unique<Adam8bit>(p, Adam8bitOptions{.lr = 0.05, .min_8bit_size = 0}); }},
    {"AdamW8bit",
     [](auto p) { return std::make_unique<AdamW8bit>(p, AdamW8bitOptions{.lr = 0.05, .min_8bit_size = 0}); }},
    {"Lion8bit", [](auto p) { return std::make_unique<Lion8bit>(p, Lion8bitOptions{.lr = 0.02, .min_8bit_size = 0}); }},
};

}  // namespace

TEST_CASE("8 bits: rules go downhill, resume with the same bits, and scale gradients") {
  const OnCpu here;
  check_rules(rules);
}

TEST_CASE("8 bits: a gradient unlike its parameter is refused") {
  const OnCpu here;
  for (const Tensor& wrong : {ones({2}), ones({4, 1}), ones({4}, {.dtype = f64}), ones({1})})
    check_gradient_like_parameter(rules, wrong);
}
