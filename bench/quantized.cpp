// Speed-up from quantised weights: milliseconds per generated token and per prompt of a GPT-2 (124M), in f32 and in
// every quantised format, alternating within one process. Prints a JSON line per format, with the ratios to f32
// (1 with --only).
//
//   bench_quantized --turns 5 --threads 2
//   bench_quantized --only group8,head --turns 1    one format, for a script that alternates programs
#include <fmt/core.h>

#include <numeric>

#include "base/threads.h"
#include "bench/program.h"
#include "extensions/generation/generate.h"
#include "extensions/quantization/quantize.h"
#include "nn/models/gpt.h"
#include "tensor/random.h"

using namespace lockstep;

int main(int argc, char** argv) {
  bench::Program app("time per token, with floating-point and quantised weights");
  int rounds = 5, threads = 2;
  int64_t tokens = 64, prompt = 16, prefill = 512;
  std::string only;
  app.add_option("--turns", rounds, "how often each case is timed");
  app.add_option("--threads", threads);
  app.add_option("--tokens", tokens, "tokens to generate after the prompt");
  app.add_option("--prompt", prompt, "length of the prompt before the timed tokens");
  app.add_option("--prefill", prefill, "length of the prompt whose prefill is timed");
  app.add_option("--only", only, "run only this case");
  return app.run(argc, argv, [&] {
    set_threads(threads);
    const NoGrad no_grad;
    struct Case {
      std::string name;
      std::unique_ptr<nn::GPT> model;
      std::vector<double> token = {}, prompt = {};
    };
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
    std::vector<int64_t> ids(size_t(std::max(prefill, prompt)));
    std::iota(ids.begin(), ids.end(), 100);
    const std::vector<std::vector<int64_t>> prompts{{ids.begin(), ids.begin() + prompt}};
    ids.resize(size_t(prefill));
    for (int round = 0; round <= rounds; ++round)  // round 0 warms up
      for (Case& c : cases) {
        double first = 0, spent = 0;
        int64_t made = 0;
        nn::generate(*c.model, prompts, {.max_new_tokens = tokens}, [&](size_t, int64_t) {
          if (++made == 1) first = steady_seconds();
          spent = steady_seconds() - first;
          return true;
        });
        const double prefilling = bench::seconds_of([&] { c.model->hidden_states(Tensor::from(ids, {1, prefill})); });
        if (round == 0) continue;
        c.token.push_back(1e3 * spent / double(made - 1));
        c.prompt.push_back(1e3 * prefilling);
      }
    for (const Case& c : cases) {
      const double token = bench::median(c.token), all = bench::median(c.prompt);
      fmt::print(
          "{{\"case\": \"{}\", \"token_ms\": {:.3f}, \"of_f32\": {:.3f}, \"prompt_ms\": {:.2f}, \"prompt_of_f32\": "
          "{:.3f}}}\n",
          c.name, token, token / bench::median(cases[0].token), all, all / bench::median(cases[0].prompt));
    }
  });
}
