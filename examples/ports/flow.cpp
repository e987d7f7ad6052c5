// A normalising flow (RealNVP, Dinh et al., 2016) that learns the density of two half moons.
//   build/examples/flow --steps 300
#include <cmath>
#include <numbers>

#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

/// Affine coupling: scales and shifts one coordinate depending on the other. The next layer swaps the two coordinates.
struct Coupling : ls::nn::Layer<Coupling> {
  explicit Coupling(int64_t kept_half) : kept_half(kept_half) {}
  /// Transformed points, and the logarithm of the scale.
  struct Output {
    Variable x, log_scale;
    void each_variable(const auto& fn) { fn(x), fn(log_scale); }
  };
  /// x (B, 2); log_scale (B, 1) is the log determinant of the Jacobian.
  Output forward(const Variable& x) {
    const Variable kept = x.narrow(1, kept_half, 1), moved = x.narrow(1, 1 - kept_half, 1);
    const Variable both = fc2(ls::tanh(fc1(kept))), log_scale = ls::tanh(both.narrow(1, 0, 1));
    const Variable made = moved * ls::exp(log_scale) + both.narrow(1, 1, 1);
    return {kept_half == 0 ? ls::cat({kept, made}, 1) : ls::cat({made, kept}, 1), log_scale};
  }
  void fields(ls::nn::Fields& f) override { f("fc1", fc1)("fc2", fc2); }

  int64_t kept_half;
  ls::nn::Linear fc1{{.in = 1, .out = 32}}, fc2{{.in = 32, .out = 2}};
};

struct Flow : ls::nn::Layer<Flow> {
  explicit Flow(int64_t depth) {
    for (int64_t i = 0; i < depth; ++i) layers.emplace_back(i % 2);
  }
  /// x: points (B, 2); returns the log density at the points (B, 1).
  Variable forward(Variable x) {
    Variable grown(ls::zeros({x.size(0), 1}));
    for (auto& layer : layers.items) {
      auto [next, log_scale] = (*layer)(x);
      x = next;
      grown = grown + log_scale;
    }
    return grown - ls::sum(ls::square(x), {1}, true) * 0.5 - std::log(2 * std::numbers::pi);
  }
  void fields(ls::nn::Fields& f) override { f("layers", layers); }

  ls::nn::ModuleList<Coupling> layers;
};

/// Points (count, 2) on two interleaved half circles, with noise.
Variable moons(ports::Run& run, int64_t count) {
  const Variable angle(run.uniform({count, 1}) * std::numbers::pi), noise(run.normal({count, 2}) * 0.1);
  const Variable upper(ls::gt(run.uniform({count, 1}), ls::full({}, 0.5)).to(ls::f32)), sign = upper * 2.0 - 1.0;
  return ls::cat({ls::cos(angle) * sign + (1.0 - upper), ls::sin(angle) * sign + (1.0 - upper) * 0.5}, 1) + noise;
}

int main(int argc, char** argv) {
  return ports::run(argc, argv, "a normalising flow", {.steps = 400, .batch = 128, .lr = 5e-3}, [](ports::Run& run) {
    Flow model(6);
    run.start(model);
    ls::optim::Adam optimizer(model.parameters(), {.lr = run.lr});
    while (run.next()) {
      const Variable loss = ls::mean(model(moons(run, run.batch))) * -1.0;
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      run.report(loss);
    }
  });
}
