// The output layer of a language model and its loss, forward and backward, with logits as a whole and in chunks of
// rows. Prints a JSON line per case: median time, CPU time of all threads, and the peak of allocated memory, less what
// was allocated before the case (so it counts logits, gradients and temporaries).
//
//   bench_head --turns 7 --chunks 128,256,512
#include <fmt/core.h>

#include "autograd/ops.h"
#include "bench/program.h"
#include "tensor/memory.h"
#include "tensor/random.h"

using namespace lockstep;

int main(int argc, char** argv) {
  bench::Program app("forward and backward of a head and its loss");
  int rounds = 5;
  int64_t rows = 1024, width = 768, vocab = 50257;
  std::vector<int64_t> chunks{0};
  std::string dtype = "f32";
  app.add_option("--turns", rounds, "repetitions of all cases");
  app.add_option("--rows", rows, "tokens");
  app.add_option("--width", width, "features of a token");
  app.add_option("--vocab", vocab, "words");
  app.add_option("--chunks", chunks, "rows per chunk, one case each; 0: automatic")->delimiter(',');
  app.add_option("--dtype", dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
  return app.run(argc, argv, [&] {
    manual_seed(1);
    const DType type = parse_dtype(dtype);
    const Variable x(randn({rows, width}).to(type), true), w(mul_scalar(randn({vocab, width}), 0.02).to(type), true);
    const Tensor target = randint(0, vocab, {rows});
    chunks.insert(chunks.begin(), -1);    // logits as a whole
    for (const int64_t chunk : chunks) {  // rounds of a case are consecutive: it reuses memory that it has freed itself
      std::vector<double> seconds, busy;
      int64_t peak = 0;
      for (int round = 0; round <= rounds; ++round) {  // round 0 warms up
        const int64_t before = memory_report().total.current;
        reset_peak_memory();
        const double work = bench::processor_seconds(), start = steady_seconds();
        const Variable loss =
            chunk < 0 ? cross_entropy(linear(x, w), target) : linear_cross_entropy(x, w, target, {}, chunk);
        const auto grads = grad(loss, {x, w});
        if (round > 0) {
          seconds.push_back(steady_seconds() - start);
          busy.push_back(bench::processor_seconds() - work);
        }
        peak = memory_report().total.peak - before;
      }
      const std::string name = chunk < 0 ? "whole" : chunk ? fmt::format("chunks of {}", chunk) : "chunks";
      fmt::print("{{\"case\": \"{}\", \"ms\": {:.1f}, \"cpu_ms\": {:.1f}, \"peak_mib\": {:.1f}}}\n", name,
                 1e3 * bench::median(seconds), 1e3 * bench::median(busy), double(peak) / (1 << 20));
    }
  });
}
