// Recurrent layers under DDP and every stage of ZeRO, also with checkpointing: an LSTM has several outputs, and the
// loss depends on its output or only on its last states. The ranks have no GPU.
#include <doctest/doctest.h>

#include "extensions/recurrent/recurrent.h"
#include "tests/devices.h"
#include "tests/zero/layers.h"

using namespace lockstep;
using namespace testing;

namespace {

struct SmallTagger : nn::Layer<SmallTagger> {
  nn::ModuleList<nn::LSTM> lstms;
  nn::Linear head = linear(10, 3);
  bool by_states = false;
  explicit SmallTagger(bool states) : by_states(states) {
    lstms.emplace_back(nn::LSTM::Options{.input = 6, .hidden = 9, .bidirectional = true});
    lstms.emplace_back(nn::LSTM::Options{.input = 18, .hidden = 12, .layers = 2, .proj_size = 10});
  }
  Variable forward(const Variable& x) {
    const nn::LstmOutput first = lstms[0](x), second = lstms[1](first.output);
    return head(by_states ? second.h.select(0, 1) + sum(first.c) * 0.01 : second.output.select(0, -1));
  }
  void fields(nn::Fields& f) override { f("lstms", lstms)("head", head); }
};

/// Recurrent cells, each called once per time step.
struct Cells : nn::Layer<Cells> {
  nn::LSTMCell lstm{{.input = 6, .hidden = 7}};
  nn::GRUCell gru{{.input = 7, .hidden = 5}};
  nn::RNNCell rnn{{.input = 5, .hidden = 6}};
  Variable forward(const Variable& x) {
    nn::LSTMCell::State state;
    Variable h, last;
    for (int64_t t = 0; t < x.size(0); ++t) {
      state = lstm(x[t], state.h, state.c);
      h = gru(state.h, h);
      last = rnn(h, last);
    }
    return last;
  }
  void fields(nn::Fields& f) override { f("lstm", lstm)("gru", gru)("rnn", rnn); }
};

}  // namespace

TEST_CASE_FIXTURE(
    OnCpu, "zero: a penalty of an LSTM's gradient has the same bits under DDP and stages 1 and 2; stage 3 refuses it") {
  check_penalty([] { return std::make_unique<SmallTagger>(false); });
}

TEST_CASE_FIXTURE(OnCpu, "zero: LSTMs have the same bits under DDP, every stage and checkpoints") {
  check_each_same_bits(
      {
          {"LSTM by its output", [] { return std::make_unique<SmallTagger>(false); }},
          {"LSTM by its states", [] { return std::make_unique<SmallTagger>(true); }},
      },
      true);
}

TEST_CASE_FIXTURE(OnCpu, "zero: every recurrent layer has the same bits under DDP and every stage") {
  const auto pack = [](const Variable& x) { return nn::pack_padded_sequence(x, {5, 3, 3, 1}); };
  check_each_same_bits({
      {"RNN",
       between([] { return nn::RNN({.input = 6, .hidden = 7, .layers = 2, .relu = true, .bidirectional = true}); }, 14,
               [](nn::RNN& l, const Variable& x) { return mean(l(x).output, {0}); })},
      {"GRU", between([] { return nn::GRU({.input = 6, .hidden = 7, .layers = 2, .dropout = 0.3}); }, 7,
                      [](nn::GRU& l, const Variable& x) { return l(x).h[1]; })},
      {"GRU, packed", between([] { return nn::GRU({.input = 6, .hidden = 7, .bidirectional = true}); }, 7,
                              [=](nn::GRU& l, const Variable& x) { return sum(l(pack(x)).h, {0}); })},
      {"LSTM, packed", between([] { return nn::LSTM({.input = 6, .hidden = 7, .proj_size = 3}); }, 7,
                               [=](nn::LSTM& l, const Variable& x) { return l(pack(x)).c[0]; })},
      {"cells", between([] { return Cells(); }, 6, [](Cells& l, const Variable& x) { return l(x); })},
  });
}
