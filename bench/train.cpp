// Times training steps of the models in models.h. Prints a JSON line: time of a step and its parts, memory, first
// losses and, with --gemm, the share of the machine's matrix-product ceiling that the step reaches.
//   bench_train gpt-small --steps 12 --gemm
//   lockstep run -n 2 -- bench_train gpt-small --steps 12       DDP; counts the tokens of all ranks
//   lockstep run -n 2 -- bench_train gpt-small --steps 12 --zero 3 --offload cpu
//   lockstep run -n 2 -- bench_train gpt-small --steps 6 --pipeline 2 --micro-batches 8
#include <sys/resource.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>

#include "autograd/autocast.h"
#include "base/threads.h"
#include "bench/models.h"
#include "bench/program.h"
#include "data/json.h"
#include "parallel/ddp.h"
#include "pipeline/layers.h"
#include "tensor/memory.h"
#include "tensor/random.h"
#include "zero/zero.h"
#ifdef LOCKSTEP_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

using namespace lockstep;
using bench::GemmShape, bench::median, bench::processor_seconds, bench::seconds_of;

namespace {

struct Options {
  std::string model, load, precision = "f32", offload = "none", schedule = "1f1b";
  int64_t steps = 0, batch = 0;
  int zero = -1, pipeline = 0, micro_batches = 4;
  double seconds = 5;
  bool gemm = false;
};

void product([[maybe_unused]] const GemmShape& s, [[maybe_unused]] const float* a, [[maybe_unused]] const float* b,
             [[maybe_unused]] float* c) {
#ifdef LOCKSTEP_WITH_ONEDNN
  const auto status = dnnl_sgemm('N', 'N', s.m, s.n, s.k, 1, a, s.k, b, s.n, 0, c, s.n);
  LOCKSTEP_CHECK(status == dnnl_success, "[ceiling] expected oneDNN's sgemm to succeed, got status ", int(status),
                 "; use another version of oneDNN");
#else
  LOCKSTEP_CHECK(false, "[ceiling] expected a build with oneDNN, got one without; build with -Donednn=enabled");
#endif
}

/// The machine's matrix-product ceiling: the speed of oneDNN's sgemm on all threads. It is measured between training
/// steps, and their speed is compared with it. The shapes take turns, so that slow phases of the machine affect all.
class GemmCeiling {
 public:
  /// Chooses the shapes: square products of sizes 1024, 1536 and 2048, and `shapes`, those of a model.
  explicit GemmCeiling(const std::vector<GemmShape>& shapes) {
    for (const int64_t n : {1024, 1536, 2048}) seconds_[{n, n, n}];
    for (const GemmShape& shape : shapes) seconds_[shape];
    for (const auto& [s, times] : seconds_) {
      a_.resize(std::max(a_.size(), size_t(s.m * s.k)), 0.5f);
      b_.resize(std::max(b_.size(), size_t(s.k * s.n)), 0.25f);
      c_.resize(std::max(c_.size(), size_t(s.m * s.n)));
    }
  }
  /// Measures each shape once. Error in a build without oneDNN.
  void measure() {
    for (auto& [shape, times] : seconds_) {
      const int runs = std::max(1, int(4e9 / shape.flops()));  // small products in groups; the first call only warms up
      const auto run = [&, s = shape] { product(s, a_.data(), b_.data(), c_.data()); };
      run();
      times.push_back(seconds_of([&] {
                        for (int i = 0; i < runs; ++i) run();
                      }) /
                      runs);
    }
  }
  /// The highest GFLOP/s of any shape, where of(times) is the time of a shape with these times in all rounds.
  template <class Of> double highest(const Of& of) const {
    double ceiling = 0;
    for (const auto& [shape, times] : seconds_) ceiling = std::max(ceiling, shape.flops() / of(times) / 1e9);
    return ceiling;
  }

 private:
  std::map<GemmShape, std::vector<double>> seconds_;
  std::vector<float> a_, b_, c_;
};

double least(const std::vector<double>& times) { return *std::min_element(times.begin(), times.end()); }
double since(double start) { return steady_seconds() - start; }
double rounded(double value, double digits) { return std::round(value * digits) / digits; }
double milliseconds(double seconds) { return rounded(1e3 * seconds, 1e4); }
double mebibytes(int64_t bytes) { return rounded(double(bytes) / (1 << 20), 10); }

double rss_now() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return mebibytes(resident * 4096);
}

double rss_peak() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return mebibytes(use.ru_maxrss * 1024);
}

/// Seconds of every timed step and of its parts.
struct Times {
  std::vector<double> step, processor, forward, backward, optimizer;
};

zero::ZeroOptions zero_options(const Options& o) {
  zero::ZeroOptions z{.stage = o.zero};
  if (o.offload == "none") return z;
  const bool files = o.offload.starts_with("nvme:");
  LOCKSTEP_CHECK(files || o.offload == "cpu", "[bench_train] expected --offload none, cpu or nvme:FOLDER, got ",
                 o.offload);
  z.offload_optimizer.device = z.offload_param.device = files ? zero::Offload::nvme : zero::Offload::cpu;
  if (o.zero < 3) z.offload_param.device = zero::Offload::none;
  if (files) z.offload_optimizer.nvme_path = z.offload_param.nvme_path = o.offload.substr(5);
  return z;
}

/// Trains the model, and prints the figures. `world`: the ranks of a job; null without a launcher.
void run(const Options& o, dist::ProcessGroup* world) {
  LOCKSTEP_CHECK(world || o.zero < 0,
                 "[bench_train] expected ranks with --zero, as lockstep run -n 2 -- bench_train ... starts them");
  LOCKSTEP_CHECK(o.pipeline == 0 || (world && world->size() == o.pipeline && o.model.starts_with("gpt-")),
                 "[bench_train] expected a gpt model with --pipeline, and as many ranks as stages");
  LOCKSTEP_CHECK(!world || (o.steps > 0 && !o.gemm),
                 "[bench_train] expected --steps and no --gemm with ranks: all must run the same steps");
  constexpr int64_t warmup = 2, prepared = 64;  // prepared: batches that gpt models draw in advance and reuse
  manual_seed(1234);
  const double base = rss_now();
  const int64_t micro_batches = o.pipeline > 0 ? o.micro_batches : 1,
                batches = o.steps > 0 ? (o.steps + warmup) * micro_batches : prepared;
  bench::Job job = bench::make_job(o.model, o.batch, batches, o.load);
  std::optional<parallel::DistributedDataParallel> ddp;
  std::optional<zero::Zero> sharded;
  std::unique_ptr<pipeline::PipelineEngine> stages;
  if (o.pipeline > 0) {
    const auto [layers, loss] = pipeline::layers_of(job.model);
    const pipeline::EngineOptions options{
        .stages = o.pipeline, .micro_batches = o.micro_batches, .schedule = pipeline::parse_kind(o.schedule)};
    stages = std::make_unique<pipeline::PipelineEngine>(layers, options, loss, world);
  }
  const auto optimizer = job.make_optimizer(stages ? stages->module() : *job.model);
  if (o.zero >= 0) sharded.emplace(*job.model, *optimizer, zero_options(o), world);
  else if (world && !stages) ddp.emplace(*job.model, parallel::DdpOptions{}, world);
  std::optional<GemmCeiling> ceiling;
  Times times;
  std::vector<double> losses, bubbles;
  double trained_rss = 0, busy = 0;
  const auto autocast = [&] { return Autocast(o.precision == "f16" ? f16 : bf16, o.precision != "f32"); };
  const auto more = [&](int64_t timed) { return o.steps > 0 ? timed < o.steps : timed < 8 || busy < o.seconds; };
  for (int64_t i = 0; more(i - warmup); ++i) {
    const double used = processor_seconds(), t0 = steady_seconds();
    double loss = 0, forward = 0, backward = 0;
    if (stages) {
      loss = stages->train_batch([&](int64_t m) -> std::optional<pipeline::Sample> {
        const auto [x, y] = job.batch(i * micro_batches + m);
        return pipeline::Sample{{x}, {y}};
      });
      backward = since(t0);
      bubbles.push_back(stages->bubble());
    } else {
      const auto loss_of = [&] {
        const Autocast low = autocast();
        return job.loss(i % batches);
      };
      const Variable l = ddp ? ddp->call(loss_of) : loss_of();
      forward = since(t0);
      l.backward();
      backward = since(t0);
      loss = l.item();
    }
    if (sharded) {
      sharded->step();
    } else {
      optimizer->step();
      optimizer->zero_grad();
    }
    const double all = since(t0);
    if (losses.size() < 8) losses.push_back(loss);
    if (i >= warmup) {
      times.processor.push_back(processor_seconds() - used);
      times.step.push_back(all), times.forward.push_back(forward);
      times.backward.push_back(backward - forward), times.optimizer.push_back(all - backward);
      busy += all;
    }
    if (!ceiling) trained_rss = rss_peak();  // measuring the ceiling allocates memory
    if (i <= warmup) continue;
    const int64_t apart = std::max<int64_t>(1, int64_t(1 / all));  // about one round per second
    if (o.gemm && (i - warmup - 1) % apart == 0) {
      if (!ceiling) ceiling.emplace(job.shapes);
      ceiling->measure();
    }
  }
  const MemoryReport memory = memory_report();
  std::vector<double> inference;
  const NoGrad no_grad;
  job.model->eval();
  for (const double start = steady_seconds();
       !sharded && !stages && (inference.size() < 3 || since(start) < o.seconds / 5);)
    inference.push_back(seconds_of([&] {
      const Autocast low = autocast();
      job.infer();
    }));

  if (world && world->rank() != 0) return;
  const int ranks = world ? world->size() : 1;
  const double step = median(times.step), fastest = least(times.step);
  data::Json line(data::Json::Object{{"bench", "train"},
                                     {"peer", "lockstep"},
                                     {"model", o.model},
                                     {"precision", o.precision},
                                     {"world", ranks},
                                     {"threads", get_threads()}});
  if (sharded) line["stage"] = o.zero, line["offload"] = o.offload;
  line["params"] = job.model->parameter_count();
  line["ms"] = milliseconds(step);
  line["min_ms"] = milliseconds(fastest);
  line["cpu_ms"] = milliseconds(median(times.processor));
  if (stages) {
    line["stages"] = o.pipeline, line["micro_batches"] = o.micro_batches, line["schedule"] = o.schedule;
    line["bubble"] = rounded(median(bubbles), 1e4);
  } else {
    line["fwd_ms"] = milliseconds(median(times.forward));
    line["bwd_ms"] = milliseconds(median(times.backward));
  }
  line["opt_ms"] = milliseconds(median(times.optimizer));
  if (!inference.empty()) line["infer_ms"] = milliseconds(median(inference));
  line[str(job.unit, "_s")] = std::round(double(job.items * (stages ? micro_batches : ranks)) / step);
  line["n"] = int64_t(times.step.size());
  line["rss_mib"] = trained_rss;
  line["base_rss_mib"] = base;
  line["ledger_mib"] = mebibytes(memory.total.peak);
  for (int c = 0; c < memory_categories; ++c) line["ledger"][name_of(Memory(c))] = mebibytes(memory.category[c].peak);
  line["gflops"] = rounded(job.flops * double(micro_batches) / step / 1e9, 10);
  if (ceiling) {
    const double usual = ceiling->highest(median), best = ceiling->highest(least);
    line["ceiling_gflops"] = rounded(usual, 10);
    line["share"] = rounded(job.flops / step / 1e9 / usual, 1000);
    line["best_ceiling_gflops"] = rounded(best, 10);
    line["best_share"] = rounded(job.flops / fastest / 1e9 / best, 1000);
  }
  for (const double loss : losses) line["loss"].push_back(rounded(loss, 1e5));
  std::cout << line.dump() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  bench::Program app("Times training steps");
  app.add_option("model", o.model, "gpt-tiny, gpt-small, gpt-124M, mlp, lenet or resnet")->required();
  app.add_option("--steps", o.steps, "timed steps; 0: as many as fit into --seconds, but 8 at least");
  app.add_option("--seconds", o.seconds);
  app.add_option("--batch", o.batch, "0: the peer's");
  app.add_option_function<int>("--threads", set_threads, "default: as OMP_NUM_THREADS says, else all cores");
  app.add_option("--load", o.load, "start from weights that the peer's gpt.py --save wrote");
  app.add_option("--precision", o.precision, "f32, bf16 or f16: products in it (autocast)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  app.add_option("--zero", o.zero, "with ranks: ZeRO of this stage in place of DDP");
  app.add_option("--offload", o.offload,
                 "with --zero: optimizer state, and stage 3's parameters, in host memory (cpu) or in files "
                 "(nvme:FOLDER)");
  app.add_option("--pipeline", o.pipeline, "on so many ranks, a gpt model: stages in place of DDP");
  app.add_option("--schedule", o.schedule, "with --pipeline: gpipe, 1f1b, interleaved, zb-h1 or dualpipe-v");
  app.add_option("--micro-batches", o.micro_batches, "with --pipeline: batches of a step");
  app.add_flag("--gemm", o.gemm, "measure oneDNN's sgemm between the steps, and print the share that the step reaches");
  return app.run(argc, argv, [&] {
    if (!std::getenv("RANK")) return run(o, nullptr);
    dist::ProcessGroup& world = dist::init();
    dist::guard([&] { run(o, &world); });
    dist::shutdown();
  });
}
