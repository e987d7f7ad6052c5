// A character-level language model with an LSTM. It learns a text in pieces, carrying the LSTM's states from piece to
// piece, then generates some text.
//   build/examples/char_lstm README.md --steps 200
#include <lockstep/recurrent.h>
#include <CLI/CLI.hpp>

#include <iostream>

#include "data/text.h"
#include "nn/linear.h"
#include "optim/optim.h"
#include "optim/optimizer.h"
#include "tensor/ops.h"
#include "tensor/random.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

/// forward() takes characters (T, B); returns scores of the next characters (T, B, vocab), and the last LSTM states.
struct CharLstm : ls::nn::Layer<CharLstm> {
  CharLstm(int64_t vocab, int64_t width, int64_t layers)
      : table({.num = vocab, .dim = width}),
        lstm({.input = width, .hidden = width, .layers = layers}),
        head({.in = width, .out = vocab}) {}
  ls::nn::LstmOutput forward(const Tensor& characters, const Variable& h, const Variable& c) {
    ls::nn::LstmOutput out = lstm(table(characters), h, c);
    out.output = head(out.output);
    return out;
  }
  void fields(ls::nn::Fields& f) override { f("table", table)("lstm", lstm)("head", head); }

  ls::nn::Embedding table;
  ls::nn::LSTM lstm;
  ls::nn::Linear head;
};

int main(int argc, char** argv) {
  CLI::App app("a language model of characters");
  std::string path;
  int64_t steps = 200, batch = 16, length = 32, width = 128, layers = 1, written = 80;
  double lr = 1e-2;
  app.add_option("text", path, "text file to learn from")->required();
  app.add_option("--steps", steps, "training steps")->capture_default_str();
  app.add_option("--batch", batch, "columns of text per batch")->capture_default_str();
  app.add_option("--length", length, "characters per step (truncated backpropagation)")->capture_default_str();
  app.add_option("--width", width, "hidden size")->capture_default_str();
  app.add_option("--layers", layers, "number of LSTM layers")->capture_default_str();
  app.add_option("--lr", lr, "learning rate of Adam")->capture_default_str();
  app.add_option("--write", written, "characters to generate at the end")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  ls::manual_seed(1);
  const Tensor bytes = ls::data::read_bytes(path).to(ls::i64);
  const int64_t column = (bytes.numel() - 1) / batch, pieces = column / length;
  LOCKSTEP_CHECK(pieces > 0, "[char_lstm] expected a text of more than ", batch * length, " characters, got ",
                 bytes.numel(), "; give a longer text");
  // Splits the text from character `first` on into `batch` pieces of equal length, the columns of the result.
  const auto columns = [&](int64_t first) {
    return bytes.narrow(0, first, batch * column).view({batch, column}).t().contiguous();
  };
  const Tensor now = columns(0), next = columns(1);
  CharLstm model(256, width, layers);
  ls::optim::Adam optimizer(model.parameters(), {.lr = lr});
  Variable h, c;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t at = step % pieces * length;
    if (at == 0) h = c = Variable();  // start of the text
    auto [output, last_h, last_c] = model(now.narrow(0, at, length), h, c);
    const Variable loss = cross_entropy(output.reshape({length * batch, 256}),
                                        Variable(next.narrow(0, at, length).reshape({length * batch})));
    loss.backward();
    ls::optim::clip_grad_norm(model.parameters(), 1);
    optimizer.step();
    optimizer.zero_grad();
    h = last_h.detach(), c = last_c.detach();
    if (step % 20 == 0 || step + 1 == steps) std::cout << "step " << step << " loss " << loss.item() << "\n";
  }
  const ls::NoGrad no_grad;
  std::string text = "The ";
  Variable scores;
  h = c = Variable();
  for (size_t i = 0; i < size_t(written); ++i) {
    if (i >= text.size()) text += char(ls::argmax(scores.tensor().flatten()).item<int64_t>());
    std::tie(scores, h, c) = [&] {
      auto r = model(Tensor::from({int64_t(uint8_t(text[i]))}, {1, 1}), h, c);
      return std::tuple(r.output, r.h, r.c);
    }();
  }
  std::cout << "says " << text << "\n";
}
