// Measures the bubble of a pipeline that really computes, and compares it with the formula for equal stages. Needs a
// free core per stage and a quiet machine.
//
//   build/bench/bench_pipeline --stages 2 --micro-batches 2,4,8,16
#include <fmt/format.h>

#include <cmath>

#include "bench/program.h"
#include "nn/linear.h"
#include "pipeline/engine.h"
#include "pipeline/simulate.h"
#include "tensor/ops.h"

using namespace lockstep;

int main(int argc, char** argv) {
  int stages = 2, steps = 9, layers = 4;
  int64_t width = 512, rows = 256;
  std::vector<int> micro_batches{2, 4, 8, 16};
  std::string schedule = "1f1b";
  bench::Program app("The bubble of a pipeline, measured");
  app.add_option("--stages", stages, "ranks, as processes")->check(CLI::Range(1, 64));
  app.add_option("--micro-batches", micro_batches, "micro-batches per step")->delimiter(',');
  app.add_option("--schedule", schedule, "gpipe, 1f1b, interleaved, zb-h1, dualpipe-v");
  app.add_option("--layers", layers, "linear layers per stage")->check(CLI::Range(1, 1000));
  app.add_option("--width", width, "features of a layer")->check(CLI::Range(1, 1 << 16));
  app.add_option("--rows", rows, "rows per micro-batch")->check(CLI::Range(1, 1 << 16));
  app.add_option("--steps", steps, "measured steps, after one warm-up step; the median is printed")
      ->check(CLI::Range(1, 1000));
  const auto measure = [&](int rank, int m) {
    std::vector<pipeline::LayerSpec> all;
    for (int i = 0; i < stages * layers; ++i)
      all.push_back(pipeline::layer<nn::Linear>({.in = width, .out = width})
                        .with([](nn::Module* net, const pipeline::Values& in) {
                          return pipeline::Values{gelu(net->call(in[0]))};
                        }));
    const pipeline::EngineOptions options{
        .micro_batches = m, .schedule = pipeline::parse_kind(schedule), .split = pipeline::SplitBy::parse("uniform")};
    pipeline::PipelineEngine engine(
        all, options, [](const pipeline::Values& out, const std::vector<Tensor>&) { return mean(out[0]); });
    const Tensor x = randn({rows, width});
    std::vector<double> bubbles, seconds;
    for (int step = 0; step <= steps; ++step) {
      engine.train_batch([&](int64_t) { return pipeline::Sample{{x}, {}}; });
      engine.module().zero_grad();
      if (step == 0) continue;
      bubbles.push_back(engine.bubble());
      seconds.push_back(engine.times()[0].busy + engine.times()[0].idle);
    }
    const double measured = bench::median(bubbles), formula = pipeline::formula(engine.schedule().request).bubble;
    if (rank == 0)
      fmt::print("{:>14}{:>11.2f}%{:>11.2f}%{:>11.1f}%{:>11.1f} ms\n", m, 100 * measured, 100 * formula,
                 formula > 0 ? 100 * std::abs(measured / formula - 1) : 0, 1e3 * bench::median(seconds));
    std::fflush(stdout);
  };
  return app.run(argc, argv, [&] {
    pipeline::parse_kind(schedule);  // Error before anything is printed
    fmt::print("{} of {} stages, {} layers of {} x {} each, {} rows a micro-batch\n{:>14}{:>12}{:>12}{:>12}{:>14}\n",
               schedule, stages, layers, width, width, rows, "micro-batches", "measured", "formula", "off by", "step");
    std::fflush(stdout);
    for (const int m : micro_batches)
      dist::spawn(stages, [&](int rank) { measure(rank, m); }, {.kind = dist::SpawnOptions::Kind::processes});
  });
}
