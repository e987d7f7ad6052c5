// Classifies digits with an LSTM that reads an image row by row.
//   build/examples/mnist_rnn --steps 300
#include <lockstep/recurrent.h>

#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

struct RowReader : ls::nn::Layer<RowReader> {
  /// images (B, 1, 28, 28); returns scores (B, 10).
  Variable forward(const Variable& images) {
    const auto read = lstm(images.reshape({-1, 28, 28}));
    return head(read.h.select(0, 0));
  }
  void fields(ls::nn::Fields& f) override { f("lstm", lstm)("head", head); }

  ls::nn::LSTM lstm{{.input = 28, .hidden = 64, .batch_first = true}};
  ls::nn::Linear head{{.in = 64, .out = 10}};
};

int main(int argc, char** argv) {
  return ports::run(argc, argv, "digits by an LSTM", {.steps = 300, .lr = 3e-3}, [](ports::Run& run) {
    RowReader model;
    run.start(model);
    ls::optim::Adam optimizer(model.parameters(), {.lr = run.lr});
    while (run.next()) {
      const auto [images, labels] = run.digits(run.batch);
      const Variable loss = ls::cross_entropy(model(Variable(images)), labels);
      optimizer.zero_grad();
      loss.backward();
      ls::optim::clip_grad_norm(model.parameters(), 1);
      optimizer.step();
      run.report(loss);
    }
  });
}
