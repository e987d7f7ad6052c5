// Speech recognition in miniature: words of a few tones in noise are transcribed by bidirectional GRUs, trained with
// CTC (Graves et al., 2006).
//   build/examples/speech --steps 200
#include <lockstep/recurrent.h>

#include <iostream>

#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

constexpr int64_t tones = 6, words = 4, frames = 40;

struct Listener : ls::nn::Layer<Listener> {
  /// frames (T, B, tones); returns log probabilities (T, B, tones + 1) of blank (0) and of each tone.
  Variable forward(const Variable& x) { return ls::log_softmax(head(gru(x).output), 2); }
  void fields(ls::nn::Fields& f) override { f("gru", gru)("head", head); }

  ls::nn::GRU gru{{.input = tones, .hidden = 48, .bidirectional = true}};
  ls::nn::Linear head{{.in = 96, .out = tones + 1}};
};

/// Recordings of `words` words each. A word is a tone that lasts 4 to 7 frames, followed by 2 quiet frames.
struct Recordings {
  Variable heard;  ///< (T, B, tones)
  Tensor said;     ///< i64 (B, words), counted from 1
};

Recordings record(ports::Run& run, int64_t count) {
  const auto tone = run.uniform({count, words}).to_vector<float>(),
             time = run.uniform({count, words}).to_vector<float>();
  std::vector<float> loud(size_t(frames * count * tones));
  std::vector<int64_t> said;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t w = 0, at = 2; w < words; ++w, at += 2) {
      const size_t index = size_t(i * words + w);
      said.push_back(1 + int64_t(tone[index] * float(tones)));
      for (const int64_t end = at + 4 + int64_t(time[index] * 4); at < end; ++at)
        loud[size_t((at * count + i) * tones + said.back() - 1)] = 1;
    }
  const Tensor noise = run.normal({frames, count, tones}) * 0.3;
  return {Variable(Tensor::from(loud, {frames, count, tones}) + noise), Tensor::from(said, {count, words})};
}

int main(int argc, char** argv) {
  return ports::run(
      argc, argv, "speech recognition by CTC", {.steps = 200, .batch = 16, .lr = 5e-3}, [](ports::Run& run) {
        const auto all = [](int64_t count, int64_t length) { return std::vector<int64_t>(size_t(count), length); };
        Listener model;
        run.start(model);
        ls::optim::Adam optimizer(model.parameters(), {.lr = run.lr});
        while (run.next()) {
          const auto [heard, said] = record(run, run.batch);
          const Variable loss = ls::ctc_loss(model(heard), said, all(run.batch, frames), all(run.batch, words));
          optimizer.zero_grad();
          loss.backward();
          ls::optim::clip_grad_norm(model.parameters(), 1);
          optimizer.step();
          run.report(loss);
        }
        // Greedy CTC decoding: the most likely symbol of each frame, without repetitions and blanks.
        const ls::NoGrad no_grad;
        const auto [heard, said] = record(run, 1);
        int64_t before = 0;
        std::cout << "said " << ls::str(said) << ", written";
        for (int64_t now : ls::argmax(model(heard).tensor(), 2).flatten().to_vector<int64_t>()) {
          if (now != 0 && now != before) std::cout << " " << now;
          before = now;
        }
        std::cout << "\n";
      });
}
