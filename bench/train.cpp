// Times training steps of the models in models.h. Prints a JSON line: time of a step and its parts, memory, first
// losses and, with --gemm, the share of the machine's matrix-product ceiling that the step reaches.
//   bench_train gpt-small --steps 12 --gemm
//   lockstep run -n 2 -- bench_train gpt-small --steps 12       DDP; counts the tokens of all ranks
//   lockstep run -n 2 -- bench_train gpt-small --steps 12 --zero 3 --offload cpu
//   lockstep run -n 2 -- bench_train gpt-small --steps 6 --pipeline 2 --micro-batches 8
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>

#include "autograd/autocast.h"
#include "base/threads.h"
#include "bench/models.h"
#include "data/json.h"
#include "parallel/ddp.h"
#include "pipeline/layers.h"
#include "tensor/memory.h"
#include "tensor/random.h"
#include "zero/zero.h"

using namespace lockstep;

namespace {

constexpr const char* usage = R"(usage: bench_train MODEL [options]
  MODEL             gpt-tiny, gpt-small, gpt-124M, mlp, lenet or resnet
  --steps N         timed steps (default: as many as fit into --seconds, but 8 at least)
  --seconds S       default 5
  --batch N         default: the peer's
  --threads N       default: as OMP_NUM_THREADS says, else all cores
  --load FILE       start from weights that the peer's gpt.py --save wrote
  --precision NAME  f32 (default), bf16 or f16: products in it (autocast)
  --zero STAGE      with ranks: ZeRO in place of DDP
  --offload WHERE   with --zero: optimizer state, and stage 3's parameters, in host memory (cpu) or in files (nvme:FOLDER)
  --pipeline N      on N ranks, a gpt model: N stages in place of DDP
  --schedule NAME   with --pipeline: gpipe, 1f1b (default), interleaved, zb-h1 or dualpipe-v
  --micro-batches M with --pipeline: batches of a step (default 4)
  --gemm            measure oneDNN's sgemm between the steps, and print the share that the step reaches
)";

struct Options {
  std::string model, load, precision = "f32", offload = "none", schedule = "1f1b";
  int64_t steps = 0, batch = 0;
  int zero = -1, pipeline = 0, micro_batches = 4;
  double seconds = 5;
  bool gemm = false;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&]() -> std::string {
      LOCKSTEP_CHECK(i + 1 < argc, "[bench_train] expected a value after ", arg, ", got nothing");
      return argv[++i];
    };
    if (arg == "--steps") o.steps = std::stoll(value());
    else if (arg == "--seconds") o.seconds = std::stod(value());
    else if (arg == "--batch") o.batch = std::stoll(value());
    else if (arg == "--threads") set_threads(std::stoi(value()));
    else if (arg == "--load") o.load = value();
    else if (arg == "--precision") o.precision = value();
    else if (arg == "--zero") o.zero = std::stoi(value());
    else if (arg == "--offload") o.offload = value();
    else if (arg == "--pipeline") o.pipeline = std::stoi(value());
    else if (arg == "--schedule") o.schedule = value();
    else if (arg == "--micro-batches") o.micro_batches = std::stoi(value());
    else if (arg == "--gemm") o.gemm = true;
    else if (o.model.empty() && !arg.starts_with("-")) o.model = arg;
    else throw Error("[bench_train] unknown argument " + arg + "\n" + usage);
  }
  LOCKSTEP_CHECK(o.precision == "f32" || o.precision == "bf16" || o.precision == "f16",
                 "[bench_train] expected --precision f32, bf16 or f16, got ", o.precision);
  LOCKSTEP_CHECK(!o.model.empty(), "[bench_train] expected a model, got none\n", usage);
  return o;
}

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

double milliseconds(double seconds) { return std::round(seconds * 1e7) / 1e4; }
double mebibytes(int64_t bytes) { return std::round(double(bytes) / (1 << 20) * 10) / 10; }

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

/// CPU time of this process so far, over all threads.
double processor_seconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return double(use.ru_utime.tv_sec + use.ru_stime.tv_sec) + 1e-6 * double(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
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
  std::optional<bench::GemmCeiling> ceiling;
  Times times;
  std::vector<double> losses, bubbles;
  double trained_rss = 0, busy = 0;
  const auto autocast = [&] { return Autocast(o.precision == "f16" ? f16 : bf16, o.precision != "f32"); };
  const auto more = [&](int64_t timed) { return o.steps > 0 ? timed < o.steps : timed < 8 || busy < o.seconds; };
  for (int64_t i = 0; more(i - warmup); ++i) {
    const double used = processor_seconds();
    const auto t0 = Clock::now();
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
  for (const auto start = Clock::now();
       !sharded && !stages && (inference.size() < 3 || since(start) < o.seconds / 5);) {
    const auto t = Clock::now();
    const Autocast low = autocast();
    job.infer();
    inference.push_back(since(t));
  }

  if (world && world->rank() != 0) return;
  const int ranks = world ? world->size() : 1;
  const double step = median(times.step), fastest = *std::min_element(times.step.begin(), times.step.end());
  data::Json line;
  line["bench"] = "train";
  line["peer"] = "lockstep";
  line["model"] = o.model;
  line["precision"] = o.precision;
  line["world"] = ranks;
  line["threads"] = get_threads();
  if (sharded) line["stage"] = o.zero, line["offload"] = o.offload;
  line["params"] = job.model->parameter_count();
  line["ms"] = milliseconds(step);
  line["min_ms"] = milliseconds(fastest);
  line["cpu_ms"] = milliseconds(median(times.processor));
  if (stages) {
    line["stages"] = o.pipeline, line["micro_batches"] = o.micro_batches, line["schedule"] = o.schedule;
    line["bubble"] = std::round(median(bubbles) * 1e4) / 1e4;
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
  line["gflops"] = std::round(job.flops * double(micro_batches) / step / 1e8) / 10;
  if (ceiling) {
    line["ceiling_gflops"] = std::round(ceiling->median() * 10) / 10;
    line["share"] = std::round(job.flops / step / 1e9 / ceiling->median() * 1000) / 1000;
    line["best_ceiling_gflops"] = std::round(ceiling->best() * 10) / 10;
    line["best_share"] = std::round(job.flops / fastest / 1e9 / ceiling->best() * 1000) / 1000;
  }
  for (const double loss : losses) line["loss"].push_back(std::round(loss * 1e5) / 1e5);
  std::cout << line.dump() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    if (!std::getenv("RANK")) {
      run(options, nullptr);
      return 0;
    }
    dist::ProcessGroup& world = dist::init();
    dist::guard([&] { run(options, &world); });
    dist::shutdown();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
