// The output layer of a language model and its loss, forward and backward, with logits as a whole and in chunks of
// rows. Prints a JSON line per case: median time, CPU time of all threads, and the peak of allocated memory, less what
// was allocated before the case (so it counts logits, gradients and temporaries).
//
//   bench_head --turns 7 --chunks 128,256,512
#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "tensor/memory.h"
#include "tensor/random.h"

using namespace lockstep;

int main(int argc, char** argv) {
  CLI::App app("forward and backward of a head and its loss");
  int rounds = 5;
  int64_t rows = 1024, width = 768, vocab = 50257;
  std::vector<int64_t> chunks{0};
  std::string dtype = "f32";
  app.add_option("--turns", rounds, "repetitions of all cases")->capture_default_str();
  app.add_option("--rows", rows, "tokens")->capture_default_str();
  app.add_option("--width", width, "features of a token")->capture_default_str();
  app.add_option("--vocab", vocab, "words")->capture_default_str();
  app.add_option("--chunks", chunks, "rows per chunk, one case each; 0: automatic")->delimiter(',');
  app.add_option("--dtype", dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  manual_seed(1);
  const DType type = dtype == "bf16" ? bf16 : f32;
  const Variable x(randn({rows, width}).to(type), true), w(mul_scalar(randn({vocab, width}), 0.02).to(type), true);
  const Tensor target = randint(0, vocab, {rows});
  struct Case {
    std::string name;
    int64_t chunk;  // -1: logits as a whole
    std::vector<double> seconds = {}, busy = {};
    int64_t peak = 0;
  };
  std::vector<Case> cases{{"whole", -1}};
  for (const int64_t chunk : chunks) cases.push_back({chunk ? fmt::format("chunks of {}", chunk) : "chunks", chunk});
  for (Case& c : cases)                              // consecutively, so that a case reuses memory it has freed itself
    for (int round = 0; round <= rounds; ++round) {  // round 0 warms up
      const int64_t before = memory_report().total.current;
      reset_peak_memory();
      const std::clock_t work = std::clock();  // CPU time of all threads
      const auto start = std::chrono::steady_clock::now();
      const Variable loss =
          c.chunk < 0 ? cross_entropy(linear(x, w), target) : linear_cross_entropy(x, w, target, {}, c.chunk);
      const auto grads = grad(loss, {x, w});
      if (round > 0) {
        c.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        c.busy.push_back(double(std::clock() - work) / CLOCKS_PER_SEC);
      }
      c.peak = memory_report().total.peak - before;
    }
  const auto median = [](std::vector<double>& of) {
    std::sort(of.begin(), of.end());
    return of.empty() ? 0 : 1e3 * of[of.size() / 2];
  };
  for (Case& c : cases)
    fmt::print("{{\"case\": \"{}\", \"ms\": {:.1f}, \"cpu_ms\": {:.1f}, \"peak_mib\": {:.1f}}}\n", c.name,
               median(c.seconds), median(c.busy), double(c.peak) / (1 << 20));
}
