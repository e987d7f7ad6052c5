// Generates digits with a WGAN-GP (Gulrajani et al., 2017): a generator against a critic whose gradient norm is kept
// near 1. The penalty depends on a gradient, so the tape differentiates twice.
//   build/examples/wgan_gp --steps 100
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

struct Critic : ls::nn::Layer<Critic> {
  /// images (B, 1, 28, 28); returns scores (B). No batch norm: the gradient penalty needs scores of single images.
  Variable forward(const Variable& images) {
    const Variable x = ls::leaky_relu(down2(ls::leaky_relu(down1(images), 0.2)), 0.2);
    return head(x.reshape({x.size(0), -1})).reshape({-1});
  }
  void fields(ls::nn::Fields& f) override { f("down1", down1)("down2", down2)("head", head); }

  ls::nn::Conv2d down1{{.in = 1, .out = 16, .kernel = 4, .stride = 2, .padding = 1}},
      down2{{.in = 16, .out = 32, .kernel = 4, .stride = 2, .padding = 1}};
  ls::nn::Linear head{{.in = 32 * 49, .out = 1}};
};

/// Gradient penalty: (norm of the critic's gradient - 1)^2 at random points between real and generated images.
Variable penalty(Critic& critic, const Tensor& real, const Tensor& made, const Tensor& share) {
  const Variable between(made + (real - made) * share, true);
  const Variable slope = ls::grad(ls::sum(critic(between)), {between}, {.create_graph = true})[0];
  return ls::mean(ls::square(ls::norm(slope.reshape({slope.size(0), -1}), {1}) - 1.0));
}

int main(int argc, char** argv) {
  return ports::run(argc, argv, "a WGAN with gradient penalty", {.steps = 80, .batch = 16, .lr = 2e-4},
                    [](ports::Run& run) {
                      Generator generator;
                      Critic critic;
                      run.start(generator);
                      run.start(critic);
                      ls::optim::Adam makes(generator.parameters(), {.lr = run.lr, .beta1 = 0.5, .beta2 = 0.9}),
                          judges(critic.parameters(), {.lr = run.lr, .beta1 = 0.5, .beta2 = 0.9});
                      while (run.next()) {
                        const Tensor real = run.digits(run.batch).images * 2.0 - 1.0;
                        const Variable made = generator(Variable(run.normal({run.batch, 16, 1, 1})));
                        const Variable gap = ls::mean(critic(made.detach())) - ls::mean(critic(Variable(real)));
                        const Tensor share = run.uniform({run.batch, 1, 1, 1});
                        const Variable loss = gap + penalty(critic, real, made.tensor(), share) * 10.0;
                        judges.zero_grad();
                        loss.backward();
                        judges.step();
                        makes.zero_grad();
                        (-ls::mean(critic(made))).backward();
                        makes.step();
                        run.report(loss);
                      }
                    });
}
