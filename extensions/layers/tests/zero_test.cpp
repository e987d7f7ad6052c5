// Bilinear and AdaptiveLogSoftmaxWithLoss have the same bits under DDP and every stage of ZeRO.
#include <doctest/doctest.h>

#include "extensions/layers/layers.h"
#include "tests/zero/layers.h"

using namespace lockstep;
using namespace testing;

namespace {

struct Mixture : nn::Layer<Mixture> {
  nn::Parametrized<nn::Linear, nn::WeightNorm> first = nn::weight_norm(linear(6, 8));
  nn::PReLU slopes{{.channels = 4}};
  nn::InstanceNorm1d norm{{.channels = 8, .affine = true}};
  nn::Bilinear pair{{.in1 = 8, .in2 = 6, .out = 10}};
  nn::Linear head = linear(5, 3);
  Variable forward(const Variable& x) {
    const Variable h = mean(norm(slopes(first(x)).permute({1, 2, 0})), {2});
    return head(nn::GLU()(pair(h, x.select(0, 0))));
  }
  void fields(nn::Fields& f) override { f("first", first)("slopes", slopes)("norm", norm)("pair", pair)("head", head); }
};

}  // namespace

TEST_CASE("zero: rare layers have the same bits under DDP and every stage") {
  struct {
    const char* name;
    MakeModel make;
  } rows[] = {
      {"a mixture", [] { return std::make_unique<Mixture>(); }},
      {"Bilinear", between([] { return nn::Bilinear({.in1 = 6, .in2 = 6, .out = 5}); }, 5,
                           [](nn::Bilinear& l, const Variable& x) { return l(x[0], x[4]); })},
      {
          "AdaptiveLogSoftmaxWithLoss",
          between(
              [] {
                return nn::AdaptiveLogSoftmaxWithLoss({.in = 6, .classes = 30, .cutoffs = {4, 26}, .div_value = 2});
              },
              6,
              [](nn::AdaptiveLogSoftmaxWithLoss& l, const Variable& x) {
                // Targets of the second cluster occur on some ranks only.
                return x[0] * l(x[0], randint(0, 30, {4})).output.unsqueeze(1);
              }),
      },
  };
  for (const auto& [name, make] : rows) {
    CAPTURE(std::string(name));
    check_same_bits(make);
  }
}

TEST_CASE(
    "zero: a penalty of a gradient of a Bilinear has the same bits under DDP and stages 1 and 2; stage 3 refuses it") {
  check_penalty([] { return std::make_unique<Mixture>(); });
}
