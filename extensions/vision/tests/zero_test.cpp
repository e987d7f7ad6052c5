// 3-d and transposed convolutions have the same bits under DDP and every stage of ZeRO.
#include <doctest/doctest.h>

#include "extensions/vision/conv.h"
#include "tests/devices.h"
#include "tests/zero/layers.h"

using namespace lockstep;
using namespace ::testing;

namespace {

struct Volumes : nn::Layer<Volumes> {
  nn::Conv3d first{{.in = 1, .out = 5, .kernel = {3, 1, 2}, .padding = {1, 0, 0}}};
  nn::ConvTranspose3d second{{.in = 5, .out = 4, .kernel = {2, 1, 2}, .groups = 1}};
  nn::Linear head = linear(4, 3);
  Variable forward(const Variable& x) {  // treats (5, 4, 6) as four volumes (1, 5, 2, 3)
    const Variable volumes = x.transpose(0, 1).reshape({4, 1, 5, 2, 3});
    return head(mean(second(relu(first(volumes))), {2, 3, 4}));
  }
  void fields(nn::Fields& f) override { f("first", first)("second", second)("head", head); }
};

}  // namespace

TEST_CASE_FIXTURE(OnCpu, "zero: 3-d and transposed convolutions have the same bits under DDP and every stage") {
  check_each_same_bits({
      {"volumes", [] { return std::make_unique<Volumes>(); }},
      {"Conv3d", of_channels<nn::Conv3d>({.in = 1, .out = 7, .kernel = 2}, {4, 1, 2, 3, 5}, 7)},
      {"ConvTranspose1d", of_channels<nn::ConvTranspose1d>({.in = 6, .out = 4, .stride = 2}, {4, 6, 5}, 4)},
      {"ConvTranspose2d", of_channels<nn::ConvTranspose2d>({.in = 6, .out = 4, .kernel = {1, 2}}, {4, 6, 1, 5}, 4)},
      {"ConvTranspose3d",
       of_channels<nn::ConvTranspose3d>({.in = 6, .out = 5, .kernel = {2, 1, 3}}, {4, 6, 1, 1, 5}, 5)},
  });
}
