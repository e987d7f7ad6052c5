// Speed-up from quantised weights: milliseconds per generated token and per prompt of a GPT-2 (124M), in f32 and in
// every quantised format, alternating within one process. Prints a JSON line per format, with the ratios to f32
// (1 with --only).
//
//   bench_quantized --turns 5 --threads 2
//   bench_quantized --only group8,head --turns 1    one format, for a script that alternates programs
#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/threads.h"
#include "extensions/generation/generate.h"
#include "extensions/quantization/quantize.h"
#include "nn/models/gpt.h"
#include "tensor/random.h"

using namespace lockstep;

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::milli>(Clock::now() - from).count();
}

struct Case {
  std::string name;
  std::unique_ptr<nn::GPT> model;
  std::vector<double> token = {}, prompt = {};
};

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("time per token, with floating-point and quantised weights");
  int rounds = 5, threads = 2;
  int64_t tokens = 64, prompt = 16, prefill = 512;
  std::string only;
  app.add_option("--turns", rounds, "how often each case is timed")->capture_default_str();
  app.add_option("--threads", threads)->capture_default_str();
  app.add_option("--tokens", tokens, "tokens to generate after the prompt")->capture_default_str();
  app.add_option("--prompt", prompt, "length of the prompt before the timed tokens")->capture_default_str();
  app.add_option("--prefill", prefill, "length of the prompt whose prefill is timed")->capture_default_str();
  app.add_option("--only", only, "run only this case");
  CLI11_PARSE(app, argc, argv);
  set_threads(threads);
  const NoGrad no_grad;
  std::vector<Case> cases;
  // The names are texts for nn::quantize_options(); ",head" quantises the output layer, too.
  for (const char* const name : {"f32", "group8,head", "group4,head", "row8,head", "dynamic,head", "llm_int8,head"}) {
    if (!only.empty() && only != name) continue;
    manual_seed(1);
    auto model = std::make_unique<nn::GPT>(
        nn::GPT::Options{.vocab = 50257, .context = 1024, .layers = 12, .width = 768, .heads = 12});
    model->eval();
    if (std::string(name) != "f32") nn::quantize(*model, nn::quantize_options(name));
    cases.push_back({name, std::move(model)});
  }
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < std::max(prefill, prompt); ++i) ids.push_back(100 + i);
  const std::vector<int64_t> start(ids.begin(), ids.begin() + prompt);
  ids.resize(size_t(prefill));
  for (int round = 0; round <= rounds; ++round)  // round 0 warms up
    for (Case& c : cases) {
      Clock::time_point first;
      int64_t made = 0;
      const std::vector<std::vector<int64_t>> prompts{start};
      double spent = 0;
      nn::generate(*c.model, prompts, {.max_new_tokens = tokens}, [&](size_t, int64_t) {
        if (++made == 1) first = Clock::now();
        spent = milliseconds(first);
        return true;
      });
      const Clock::time_point before = Clock::now();
      const Tensor x = Tensor::from(ids, {1, prefill});
      (*c.model).hidden_states(x);
      if (round == 0) continue;
      c.token.push_back(spent / double(made - 1));
      c.prompt.push_back(milliseconds(before));
    }
  for (const Case& c : cases)
    fmt::print(
        "{{\"case\": \"{}\", \"token_ms\": {:.3f}, \"of_f32\": {:.3f}, \"prompt_ms\": {:.2f}, \"prompt_of_f32\": "
        "{:.3f}}}\n",
        c.name, median(c.token), median(c.token) / median(cases[0].token), median(c.prompt),
        median(c.prompt) / median(cases[0].prompt));
}
