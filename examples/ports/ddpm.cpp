// Denoising diffusion (Ho et al., 2020) of points on a spiral. Samples are drawn with a moving average of the weights.
//   build/examples/ddpm --steps 400
#include <lockstep/layers.h>
#include <lockstep/optimizers.h>

#include <cmath>
#include <iostream>

#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

constexpr int64_t times = 50;

/// Predicts the noise in points (B, 2) at diffusion times i64 (B).
struct Denoiser : ls::nn::Layer<Denoiser> {
  Variable forward(const Variable& x, const Tensor& time) {
    Variable h = ls::silu(fc1(x) + table(time));
    h = h + ls::silu(fc2(h));
    return fc3(h);
  }
  void fields(ls::nn::Fields& f) override { f("table", table)("fc1", fc1)("fc2", fc2)("fc3", fc3); }

  ls::nn::Embedding table{{.num = times, .dim = 64}};
  ls::nn::Linear fc1{{.in = 2, .out = 64}}, fc2{{.in = 64, .out = 64}}, fc3{{.in = 64, .out = 2}};
};

double beta(int64_t t) { return 1e-3 + 0.12 * double(t) / double(times - 1); }

Tensor spiral(ports::Run& run, int64_t count) {
  const Tensor angle = ls::sqrt(run.uniform({count, 1})) * 9.0;
  return ls::cat({ls::cos(angle) * angle, ls::sin(angle) * angle}, 1) * 0.2;
}

int main(int argc, char** argv) {
  return ports::run(
      argc, argv, "a diffusion model of a spiral", {.steps = 600, .batch = 128, .lr = 3e-3}, [](ports::Run& run) {
        std::vector<float> left;  // share of the signal that is left at each time
        for (int64_t t = 0; t < times; ++t) left.push_back(float((t ? left.back() : 1) * (1 - beta(t))));
        const Tensor alpha = Tensor::from(left, {times});

        Denoiser model;
        run.start(model);
        ls::optim::Adam optimizer(model.parameters(), {.lr = run.lr});
        ls::optim::WeightAverage average(model.parameters(), 0.98);
        while (run.next()) {
          const Tensor x = spiral(run, run.batch), noise = run.normal({run.batch, 2});
          const Tensor time = (run.uniform({run.batch}) * double(times)).to(ls::i64);
          const Tensor a = ls::index_select(alpha, 0, time).reshape({run.batch, 1});
          const Variable mixed(ls::sqrt(a) * x + ls::sqrt(1.0 - a) * noise);
          const Variable loss = ls::mse_loss(model(mixed, time), Variable(noise));
          optimizer.zero_grad();
          loss.backward();
          optimizer.step();
          average.update();
          run.report(loss);
        }
        // Sample points with the averaged weights, and measure their distance to the spiral.
        const ls::NoGrad no_grad;
        average.swap();
        Tensor x = run.normal({256, 2});
        for (int64_t t = times; t-- > 0;) {
          const double a = double(left[size_t(t)]), b = beta(t);
          const Tensor said = model(Variable(x), ls::full({256}, double(t), {.dtype = ls::i64})).tensor();
          x = (x - said * (b / std::sqrt(1 - a))) * (1 / std::sqrt(1 - b));
          if (t > 0) x = x + run.normal({256, 2}) * std::sqrt(b);
        }
        const Tensor truth = spiral(run, 2048);
        std::cout << "drawn points lie " << ls::mean(ls::amin(ls::cdist(x, truth), {1})).item() << " from the spiral\n";
      });
}
