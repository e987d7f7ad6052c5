// Enlarges digits from 14 x 14 to 28 x 28 pixels with a sub-pixel convolution (Shi et al., 2016).
//   build/examples/super_resolution --steps 100
#include <lockstep/layers.h>
#include <lockstep/vision.h>

#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

struct Upscaler : ls::nn::Layer<Upscaler> {
  /// images (B, 1, H, W); returns enlarged images (B, 1, 2 H, 2 W).
  Variable forward(const Variable& x) { return shuffle(conv3(ls::relu(conv2(ls::relu(conv1(x)))))); }
  void fields(ls::nn::Fields& f) override { f("conv1", conv1)("conv2", conv2)("conv3", conv3); }

  ls::nn::Conv2d conv1{{.in = 1, .out = 16, .kernel = 5, .padding = 2}},
      conv2{{.in = 16, .out = 16, .kernel = 3, .padding = 1}}, conv3{{.in = 16, .out = 4, .kernel = 3, .padding = 1}};
  ls::nn::PixelShuffle shuffle{{.factor = 2}};
};

int main(int argc, char** argv) {
  return ports::run(argc, argv, "super-resolution", {.steps = 100, .batch = 16, .lr = 3e-3}, [](ports::Run& run) {
    Upscaler model;
    run.start(model);
    ls::optim::Adam optimizer(model.parameters(), {.lr = run.lr});
    ls::nn::AvgPool2d shrink({.kernel = 2});
    while (run.next()) {
      const Variable large(run.digits(run.batch).images);
      const Variable loss = ls::mse_loss(model(shrink(large)), large);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      run.report(loss);
    }
  });
}
