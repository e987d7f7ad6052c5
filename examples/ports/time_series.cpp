// Predicts sine waves with two stacked LSTMs, trained on the full batch by L-BFGS.
//   build/examples/time_series --steps 8
#include <lockstep/optimizers.h>
#include <lockstep/recurrent.h>

#include <cmath>

#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

struct Sequence : ls::nn::Layer<Sequence> {
  /// waves (T, B, 1); returns the prediction of each next value (T, B, 1).
  Variable forward(const Variable& waves) { return linear(lstm(waves).output); }
  void fields(ls::nn::Fields& f) override { f("lstm", lstm)("linear", linear); }

  ls::nn::LSTM lstm{{.input = 1, .hidden = 24, .layers = 2}};
  ls::nn::Linear linear{{.in = 24, .out = 1}};
};

int main(int argc, char** argv) {
  return ports::run(argc, argv, "sine wave prediction", {.steps = 8, .batch = 16, .lr = 0.8}, [](ports::Run& run) {
    constexpr int64_t length = 60;
    const auto starts = run.uniform({run.batch}).to_vector<float>();
    std::vector<double> values;
    for (int64_t t = 0; t <= length; ++t)
      for (float start : starts) values.push_back(std::sin(double(t) / 5 + 20 * double(start)));
    const Tensor waves = Tensor::from(values, {length + 1, run.batch, 1});
    const Variable inputs(waves.narrow(0, 0, length)), next(waves.narrow(0, 1, length));

    Sequence model;
    run.start(model);
    model.to(ls::f64);  // L-BFGS depends on small differences
    ls::optim::LBFGS optimizer(model.parameters(), {.lr = run.lr, .max_iter = 10, .line_search = true});
    while (run.next()) run.report(optimizer.step([&] { return ls::mse_loss(model(inputs), next); }));
  });
}
