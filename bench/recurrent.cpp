// Training steps of recurrent layers, forward and backward, in one process and taking turns: a line of JSON each.
//
//   bench_recurrent --turns 5 --only lstm
#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <string>

#include "nn/recurrent.h"
#include "tensor/ops.h"
#include "tensor/random.h"

using namespace lockstep;

int main(int argc, char** argv) {
  CLI::App app("forward and backward of recurrent layers");
  int turns = 5;
  int64_t steps = 100, batch = 32, width = 512, layers = 2;
  app.add_option("--turns", turns, "of all layers")->capture_default_str();
  app.add_option("--steps", steps, "of a sequence")->capture_default_str();
  app.add_option("--batch", batch, "sequences")->capture_default_str();
  app.add_option("--width", width, "of inputs and states")->capture_default_str();
  app.add_option("--layers", layers, "one on the other")->capture_default_str();
  std::string only;
  app.add_option("--only", only, "lstm, gru or rnn; else all of them");
  CLI11_PARSE(app, argc, argv);
  manual_seed(1);
  nn::LSTM lstm({.input = width, .hidden = width, .layers = layers});
  nn::GRU gru({.input = width, .hidden = width, .layers = layers});
  nn::RNN rnn({.input = width, .hidden = width, .layers = layers});
  const Tensor x = randn({steps, batch, width});
  struct Case {
    const char* name;
    nn::Module& model;
    std::vector<double> seconds = {};
  } cases[] = {{"lstm", lstm}, {"gru", gru}, {"rnn", rnn}};
  for (int turn = 0; turn <= turns; ++turn)  // the first one warms up
    for (Case& c : cases) {
      if (!only.empty() && only != c.name) continue;
      c.model.zero_grad();
      const auto start = std::chrono::steady_clock::now();
      sum(c.model.call(x)).backward();
      if (turn > 0)
        c.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  for (Case& c : cases) {
    if (c.seconds.empty()) continue;
    std::sort(c.seconds.begin(), c.seconds.end());
    fmt::print("{{\"case\": \"{}\", \"ms\": {:.2f}}}\n", c.name, 1e3 * c.seconds[c.seconds.size() / 2]);
  }
}
