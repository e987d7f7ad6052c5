// Variational autoencoder of digits (Kingma and Welling, 2013).
//   build/examples/vae --steps 300
#include <lockstep/operations.h>

#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

struct Vae : ls::nn::Layer<Vae> {
  /// Logits of the reconstructed pixels, and mean and log variance of the latent variables.
  struct Output {
    Variable scores, mean, log_variance;
    void each_variable(const auto& fn) { fn(scores), fn(mean), fn(log_variance); }
  };
  /// x (B, 784) in [0, 1]; noise (B, 8) from N(0, 1).
  Output forward(const Variable& x, const Variable& noise) {
    const Variable hidden = ls::relu(fc1(x)), mean = fc21(hidden), log_variance = fc22(hidden);
    const Variable z = mean + noise * ls::exp(log_variance * 0.5);
    return {fc4(ls::relu(fc3(z))), mean, log_variance};
  }
  void fields(ls::nn::Fields& f) override { f("fc1", fc1)("fc21", fc21)("fc22", fc22)("fc3", fc3)("fc4", fc4); }

  ls::nn::Linear fc1{{.in = 784, .out = 128}}, fc21{{.in = 128, .out = 8}}, fc22{{.in = 128, .out = 8}},
      fc3{{.in = 8, .out = 128}}, fc4{{.in = 128, .out = 784}};
};

int main(int argc, char** argv) {
  return ports::run(argc, argv, "a variational autoencoder of digits", {.steps = 300}, [](ports::Run& run) {
    Vae model;
    run.start(model);
    ls::optim::Adam optimizer(model.parameters(), {.lr = run.lr});
    while (run.next()) {
      const Variable x(run.digits(run.batch).images.reshape({run.batch, 784}));
      const auto [scores, mean, log_variance] = model(x, Variable(run.normal({run.batch, 8})));
      const Variable reconstruction = ls::bce_with_logits(scores, x, {}, {}, ls::Reduction::sum);
      const Variable divergence = ls::sum(log_variance + 1.0 - ls::square(mean) - ls::exp(log_variance)) * -0.5;
      const Variable loss = (reconstruction + divergence) / double(run.batch);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      run.report(loss);
    }
  });
}
