// Word-level language model of small sentences, with an LSTM, a GRU or a transformer: --model.
//   build/examples/word_language_model --model transformer
#include <lockstep/layers.h>
#include <lockstep/operations.h>
#include <lockstep/recurrent.h>

#include <cmath>
#include <iostream>

#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

constexpr int64_t width = 32, words_of_sentence = 7, sentences = 3, length = sentences * words_of_sentence;
constexpr const char* vocabulary[] = {"the", ".",    "old",  "young", "tall",  "small", "cat",
                                      "dog", "bird", "fish", "sees",  "hears", "likes", "knows"};
constexpr int64_t words = std::size(vocabulary);

/// Makes sentences like "the old cat sees the dog .", three per column: i64 (length + 1, batch). The subject determines
/// the object.
Tensor text(ports::Run& run, int64_t batch) {
  const Tensor sampled = (run.uniform({3, sentences, batch}) * 4.0).to(ls::i64);
  const Tensor adjective = sampled[0], subject = sampled[1], verb = sampled[2];
  const Tensor last = ls::eq(subject, ls::full_like(subject, 3)), object = ls::masked_fill(subject + 1, last, 0);
  const Tensor the = ls::zeros_like(subject), end = ls::ones_like(subject);
  const Tensor all = ls::stack({the, adjective + 2, subject + 6, verb + 10, the, object + 6, end}, 1);
  return ls::cat({all.reshape({length, batch}), the.narrow(0, 0, 1)}, 0);
}

struct WordModel : ls::nn::Layer<WordModel> {
  /// Recurrent state: h and c for the LSTM, h for the GRU, empty for the transformer.
  struct State {
    Variable h, c;
  };

  explicit WordModel(const std::string& kind) {
    if (kind == "lstm") lstm.emplace(ls::nn::LSTM::Options{.input = width, .hidden = width, .layers = 2});
    else if (kind == "gru") gru.emplace(ls::nn::GRU::Options{.input = width, .hidden = width, .layers = 2});
    else
      transformer.emplace(ls::nn::TransformerEncoder::Options{
          .layer = {.width = width, .heads = 4, .inner = 64, .dropout = 0}, .layers = 2});
  }
  /// said: words (T, B); returns scores (T, B, words) of the word after each word.
  Variable forward(const Tensor& said, State& state) {
    const Variable x = table(said);
    if (lstm) {
      const auto out = (*lstm)(x, state.h, state.c);
      state = {out.h.detach(), out.c.detach()};
      return decoder(out.output);
    }
    if (gru) {
      const auto out = (*gru)(x, state.h);
      state.h = out.h.detach();
      return decoder(out.output);
    }
    const Variable placed = x * std::sqrt(double(width)) + positions(said.size(0));
    return decoder((*transformer)(placed, {.causal = true}));
  }
  void fields(ls::nn::Fields& f) override {
    f("table", table);
    if (lstm) f("lstm", *lstm);
    if (gru) f("gru", *gru);
    if (transformer) f("transformer", *transformer);
    f("decoder", decoder);
  }
  /// Sinusoidal position encodings (Vaswani et al., 2017): (T, 1, width).
  static Tensor positions(int64_t tokens) {
    const Tensor place = ls::arange(0, double(tokens), 1, {.dtype = ls::f32}).view({tokens, 1});
    const Tensor speed = ls::exp(ls::arange(0, width, 2, {.dtype = ls::f32}) * (-std::log(10000.0) / width));
    return ls::stack({ls::sin(place * speed), ls::cos(place * speed)}, 2).reshape({tokens, 1, width});
  }

  ls::nn::Embedding table{{.num = words, .dim = width}};
  std::optional<ls::nn::LSTM> lstm;
  std::optional<ls::nn::GRU> gru;
  std::optional<ls::nn::TransformerEncoder> transformer;
  ls::nn::Linear decoder{{.in = width, .out = words}};
};

/// Samples two sentences and prints them.
void write(WordModel& model) {
  const ls::NoGrad no_grad;
  std::vector<int64_t> said{0};
  WordModel::State state;
  for (int64_t i = 1; i < 2 * words_of_sentence; ++i) {
    const bool all = bool(model.transformer);  // the transformer reads the whole text again
    const Tensor read = all ? Tensor::from(said, {i, 1}) : Tensor::from({said.back()}, {1, 1});
    const Variable scores = model(read, state);
    const Tensor chances = ls::softmax(scores.tensor().select(0, -1).flatten(), 0);
    const Tensor below = ls::lt(ls::cumsum(chances, 0), ls::rand({1}));
    said.push_back(std::min(words - 1, ls::sum(below.to(ls::i64)).item<int64_t>()));
  }
  std::cout << "says";
  for (const int64_t word : said) std::cout << " " << vocabulary[word];
  std::cout << "\n";
}

int main(int argc, char** argv) {
  const auto program = [](ports::Run& run) {
    WordModel model(run.model);
    run.start(model);
    ls::optim::Adam optimizer(model.parameters(), {.lr = run.lr});
    WordModel::State state;
    while (run.next()) {
      const Tensor now = text(run, run.batch);
      const Variable scores = model(now.narrow(0, 0, length), state);
      const Variable loss = ls::cross_entropy(scores.reshape({-1, words}), now.narrow(0, 1, length).reshape({-1}));
      optimizer.zero_grad();
      loss.backward();
      ls::optim::clip_grad_norm(model.parameters(), 0.25);
      optimizer.step();
      run.report(loss);
    }
    if (!run.golden) write(model);
  };
  return ports::run(argc, argv, "a word-level language model", {.steps = 300, .lr = 5e-3}, program,
                    {"lstm", "gru", "transformer"});
}
