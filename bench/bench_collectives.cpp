// Benchmark of collectives in the units of nccl-tests: for each size the median time of a call, algbw = bytes / time,
// and busbw, which is corrected for the collective so that it can be compared with the link speed for any number of
// ranks.
//   bench_collectives --transport shm --ranks 2 --op all_reduce --min 1K --max 64M
//   mpirun -n 2 bench_collectives    ranks started by a launcher; the job determines the transport
#include <fmt/format.h>

#include "base/threads.h"
#include "bench/program.h"
#include "data/json.h"
#include "dist/process_group.h"
#include "tensor/ops.h"

using namespace lockstep;

namespace {

struct Options {
  std::string transport = "shm", op = "all_reduce", dtype = "f32", algorithm = "automatic", backend = "auto";
  int ranks = 2;
  int64_t min = 1 << 10, max = 64 << 20, factor = 2;
  double seconds = 0.5;
  bool json = false, ordinary = false;
};

/// Returns busbw / algbw as in nccl-tests: the bytes that an optimal algorithm on n ranks sends over a link, per byte
/// of the buffer.
double bus_factor(const std::string& op, int n) {
  if (op == "all_reduce") return 2.0 * (n - 1) / n;
  if (op == "broadcast" || op == "reduce") return 1;
  return double(n - 1) / n;  // the buffer of all ranks is gathered, scattered or exchanged
}

void measure(dist::ProcessGroup& world, const Options& o, const std::string& name) {
  const int n = world.size(), me = world.rank();
  const DType dtype = parse_dtype(o.dtype);
  const dist::CollectiveOptions options{.algorithm = dist::parse_algorithm(o.algorithm), .tag = "bench"};
  if (me == 0 && !o.json) {
    fmt::print("# {} {}, {} ranks, {}, {}\n#{:>12} {:>12} {:>10} {:>10} {:>10} {:>8}\n", o.op, o.dtype, n, name,
               o.algorithm, "bytes", "time (us)", "min (us)", "algbw GB/s", "busbw GB/s", "calls");
  }
  for (int64_t bytes = o.min;; bytes = std::min(bytes * o.factor, o.max)) {
    const int64_t count =
        std::max<int64_t>(bytes / int64_t(size_of(dtype)) / n, 1) * n;  // a multiple of n, for all_to_all
    // Zeros, which repeated in-place sums do not change.
    const auto make = [&](int64_t size) {
      return o.ordinary ? zeros({size}, {.dtype = dtype}) : world.shared_empty({size}, dtype).zero_();
    };
    const Tensor full = make(count), other = make(count), part = make(count / n);
    const auto call = [&] {
      if (o.op == "all_reduce") world.all_reduce(full, options).wait();
      else if (o.op == "reduce_scatter") world.reduce_scatter(part, full, options).wait();
      else if (o.op == "all_gather") world.all_gather(full, part, options).wait();
      else if (o.op == "broadcast") world.broadcast(full, 0, options).wait();
      else if (o.op == "reduce") world.reduce(full, 0, options).wait();
      else if (o.op == "gather") world.gather(me == 0 ? full : Tensor(), part, 0, options).wait();
      else if (o.op == "scatter") world.scatter(part, me == 0 ? full : Tensor(), 0, options).wait();
      else if (o.op == "all_to_all") world.all_to_all(other, full, options).wait();
      else world.barrier();
    };
    const auto thrice = [&] {
      for (int i = 0; i < 3; ++i) call();
    };
    thrice();
    const Tensor calls = Tensor::from({int64_t(o.seconds * 3 / bench::seconds_of(thrice))});
    world.broadcast(calls, 0).wait();
    std::vector<double> times(size_t(std::clamp<int64_t>(calls.item<int64_t>(), 5, 20000)));
    for (double& us : times) us = 1e6 * bench::seconds_of(call);
    const double us = bench::median(times), least = *std::min_element(times.begin(), times.end());
    const double moved = double(count) * double(size_of(dtype)), algbw = o.op == "barrier" ? 0 : moved / us / 1e3;
    if (me == 0 && o.json) {
      const data::Json line(data::Json::Object{{"bench", "collectives"},
                                               {"op", o.op},
                                               {"how", name},
                                               {"algorithm", o.algorithm},
                                               {"ranks", n},
                                               {"dtype", o.dtype},
                                               {"bytes", int64_t(moved)},
                                               {"us", us},
                                               {"min_us", least},
                                               {"algbw_gbs", algbw},
                                               {"busbw_gbs", algbw * bus_factor(o.op, n)},
                                               {"n", int64_t(times.size())}});
      fmt::print("{}\n", line.dump());
    } else if (me == 0) {
      fmt::print(" {:>12} {:>12.2f} {:>10.2f} {:>10.3f} {:>10.3f} {:>8}\n", int64_t(moved), us, least, algbw,
                 algbw * bus_factor(o.op, n), times.size());
    }
    std::fflush(stdout);
    if (bytes >= o.max || o.op == "barrier") break;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  bench::Program app("Speed of collectives, in the units of nccl-tests");
  const auto size = CLI::AsSizeValue(false);  // 1K = 1024
  app.add_option("--transport", o.transport, "shm, tcp (processes) or threads")
      ->check(CLI::IsMember({"shm", "tcp", "threads"}));
  app.add_option("--ranks", o.ranks, "number of ranks")->check(CLI::Range(1, 64));
  app.add_option("--op", o.op, "the collective")
      ->check(CLI::IsMember({"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter",
                             "all_to_all", "barrier"}));
  app.add_option("--dtype", o.dtype)->check(CLI::IsMember({"f32", "f64", "f16", "bf16", "i64", "i32", "i8", "u8"}));
  app.add_option("--algorithm", o.algorithm,
                 "automatic, ring, direct, tree, halving_doubling, hierarchical, server, one_shot, in_place");
  app.add_option("--backend", o.backend, "under a launcher: auto, native, nccl");
  app.add_option("--min", o.min, "smallest size in bytes")->transform(size)->check(CLI::PositiveNumber);
  app.add_option("--max", o.max, "largest size in bytes")->transform(size)->check(CLI::PositiveNumber);
  app.add_option("--factor", o.factor, "ratio of one size to the previous one")->check(CLI::Range(2, 1024));
  app.add_option("--seconds", o.seconds, "about this long for each size")->check(CLI::PositiveNumber);
  app.add_flag("--ordinary", o.ordinary, "use ordinary tensors, not ProcessGroup::shared_empty()");
  app.add_flag("--json", o.json, "a JSON object per size");
  return app.run(argc, argv, [&] {
    LOCKSTEP_CHECK(o.min <= o.max, "expected --min <= --max, got ", o.min, " and ", o.max);
    set_threads(1);
    if (std::getenv("RANK") || std::getenv("OMPI_COMM_WORLD_RANK")) {
      dist::ProcessGroup& world = dist::init("env://", o.backend);
      dist::guard([&] { measure(world, o, world.engine()); });
      dist::shutdown();
    } else {
      const auto kind =
          o.transport == "threads" ? dist::SpawnOptions::Kind::threads : dist::SpawnOptions::Kind::processes;
      dist::spawn(o.ranks, [&](int) { measure(dist::world(), o, o.transport); },
                  {.kind = kind, .transport = o.transport});
    }
  });
}
