// Layers with state inside a checkpoint: values, gradients and state have the same bits as in the plain run.
#include <doctest/doctest.h>

#include "tests/nn/properties.h"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

/// A custom layer with state: a running mean that is overwritten, and a counter.
struct Standardize : Layer<Standardize> {
  Tensor mean = zeros({16}), calls = zeros({}, {.dtype = i64});
  int64_t counted = 0;
  Variable forward(const Variable& x) {
    if (is_training()) {
      mean.copy_(lerp(mean, lockstep::mean(x.tensor(), {0}), 0.5));
      add_scalar_(calls, 1);
      if (!is_recomputing()) ++counted;
    }
    return x - Variable(mean);
  }
  void fields(Fields& f) override { f("mean", mean)("calls", calls); }
};

const std::tuple<const char*, std::function<Sequential()>, Shape> rows[] = {
    {"BatchNorm1d",
     [] { return Sequential(Linear({.in = 16, .out = 16}), BatchNorm1d({.channels = 16}), ReLU()); },
     {16, 16}},
    {"BatchNorm1d, plain average",
     [] { return Sequential(Linear({.in = 16, .out = 16}), BatchNorm1d({.channels = 16, .momentum = {}}), Tanh()); },
     {16, 16}},
    {"BatchNorm2d",
     [] {
       return Sequential(Conv2d({.in = 2, .out = 3, .kernel = 3}), BatchNorm2d({.channels = 3}), Dropout({.p = 0.2}));
     },
     {4, 2, 6, 6}},
    {"a user's own", [] { return Sequential(Linear({.in = 16, .out = 16}), Standardize(), Tanh()); }, {16, 16}},
};

}  // namespace

TEST_CASE("layers with state count a forward that runs twice once") {
  for (const auto& [name, make, shape] : rows) {
    CAPTURE(name);
    testing::check_recomputed({make, shape, {}, [](Sequential& net) -> testing::AfterStep {
                                 return [&net](int step, testing::NamedValues&) {
                                   for (const auto& [name, module] : net.named_modules())
                                     if (auto* const own = dynamic_cast<Standardize*>(module))
                                       CHECK(own->counted == 2 * (step + 1));
                                 };
                               }});
  }
}
