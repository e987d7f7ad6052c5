// Generates digits with a DCGAN (Radford et al., 2015): a generator against a discriminator.
//   build/examples/dcgan --steps 100
#include <lockstep/operations.h>
#include <lockstep/vision.h>

#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

struct Generator : ls::nn::Layer<Generator> {
  /// noise (B, 16, 1, 1); returns images (B, 1, 28, 28) in [-1, 1].
  Variable forward(const Variable& noise) { return ls::tanh(up3(ls::relu(norm2(up2(ls::relu(norm1(up1(noise)))))))); }
  void fields(ls::nn::Fields& f) override { f("up1", up1)("norm1", norm1)("up2", up2)("norm2", norm2)("up3", up3); }

  ls::nn::ConvTranspose2d up1{{.in = 16, .out = 32, .kernel = 7, .bias = false}},
      up2{{.in = 32, .out = 16, .kernel = 4, .stride = 2, .padding = 1, .bias = false}},
      up3{{.in = 16, .out = 1, .kernel = 4, .stride = 2, .padding = 1, .bias = false}};
  ls::nn::BatchNorm2d norm1{{.channels = 32}}, norm2{{.channels = 16}};
};

struct Discriminator : ls::nn::Layer<Discriminator> {
  /// images (B, 1, 28, 28); returns scores (B), positive for real images.
  Variable forward(const Variable& images) {
    const Variable x = ls::leaky_relu(norm2(down2(ls::leaky_relu(down1(images), 0.2))), 0.2);
    return head(x.reshape({x.size(0), -1})).reshape({-1});
  }
  void fields(ls::nn::Fields& f) override { f("down1", down1)("down2", down2)("norm2", norm2)("head", head); }

  ls::nn::Conv2d down1{{.in = 1, .out = 16, .kernel = 4, .stride = 2, .padding = 1, .bias = false}},
      down2{{.in = 16, .out = 32, .kernel = 4, .stride = 2, .padding = 1, .bias = false}};
  ls::nn::BatchNorm2d norm2{{.channels = 32}};
  ls::nn::Linear head{{.in = 32 * 49, .out = 1}};
};

/// Binary cross entropy of the discriminator's scores (B). real: the label, true for real images.
Variable judged(const Variable& scores, bool real) {
  return ls::bce_with_logits(scores, Variable(ls::full(scores.shape(), real ? 1 : 0)));
}

int main(int argc, char** argv) {
  return ports::run(argc, argv, "a GAN of digits", {.steps = 60, .batch = 16, .lr = 5e-4}, [](ports::Run& run) {
    Generator generator;
    Discriminator discriminator;
    run.start(generator);
    run.start(discriminator);
    ls::optim::Adam makes(generator.parameters(), {.lr = run.lr, .beta1 = 0.5}),
        judges(discriminator.parameters(), {.lr = run.lr, .beta1 = 0.5});
    while (run.next()) {
      const Variable real(run.digits(run.batch).images * 2.0 - 1.0);
      const Variable made = generator(Variable(run.normal({run.batch, 16, 1, 1})));
      const Variable loss = judged(discriminator(real), true) + judged(discriminator(made.detach()), false);
      judges.zero_grad();
      loss.backward();
      judges.step();
      makes.zero_grad();
      judged(discriminator(made), true).backward();
      makes.step();
      run.report(loss);
    }
  });
}
