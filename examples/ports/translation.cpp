// Learns a simple translation, each word replaced by another and the order reversed, with an encoder and a decoder with
// attention (Luong et al., 2015).
//   build/examples/translation --steps 300
#include <lockstep/recurrent.h>

#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

constexpr int64_t words = 12, length = 8, width = 48;

struct Translator : ls::nn::Layer<Translator> {
  /// source (B, T); before (B, T): the target shifted by one word; returns scores (B, T, words) of the target.
  Variable forward(const Tensor& source, const Tensor& before) {
    const auto [read, last] = encoder(source_table(source));
    const Variable said = decoder(target_table(before), last).output;
    const Variable attention = ls::softmax(ls::matmul(said, read.transpose(1, 2)), -1);
    return head(ls::tanh(merge(ls::cat({said, ls::matmul(attention, read)}, 2))));
  }
  void fields(ls::nn::Fields& f) override {
    f("source_table", source_table)("target_table", target_table)("encoder", encoder)("decoder", decoder)(
        "merge", merge)("head", head);
  }

  ls::nn::Embedding source_table{{.num = words, .dim = width}}, target_table{{.num = words + 1, .dim = width}};
  ls::nn::GRU encoder{{.input = width, .hidden = width, .batch_first = true}},
      decoder{{.input = width, .hidden = width, .batch_first = true}};
  ls::nn::Linear merge{{.in = 2 * width, .out = width}}, head{{.in = width, .out = words}};
};

int main(int argc, char** argv) {
  return ports::run(argc, argv, "translation with attention", {.steps = 300, .lr = 5e-3}, [](ports::Run& run) {
    const Tensor begin = ls::full({run.batch, 1}, double(words), {.dtype = ls::i64});  // start symbol
    const Tensor backwards = ls::arange(length - 1, -1, -1);
    Translator model;
    run.start(model);
    ls::optim::Adam optimizer(model.parameters(), {.lr = run.lr});
    while (run.next()) {
      const Tensor source = (run.uniform({run.batch, length}) * double(words)).to(ls::i64);
      const Tensor target = ls::index_select(words - 1 - source, 1, backwards);
      const Variable scores = model(source, ls::cat({begin, target.narrow(1, 0, length - 1)}, 1));
      const Variable loss = ls::cross_entropy(scores.reshape({-1, words}), target.reshape({-1}));
      optimizer.zero_grad();
      loss.backward();
      ls::optim::clip_grad_norm(model.parameters(), 1);
      optimizer.step();
      run.report(loss);
    }
  });
}
