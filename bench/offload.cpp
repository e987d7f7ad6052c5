// Cost of offloading: the optimizer step with state in memory and in files, and file transfers compared with plain
// reads and writes.
//   bench_offload --folder /nvme [--elements 50000000] [--tile 2097152] [--dtype bf16]
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "base/threads.h"
#include "bench/program.h"
#include "dist/process_group.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "zero/offload/tile_ring.h"
#include "zero/zero.h"

using namespace lockstep;
using bench::median, bench::seconds_of, zero::Offload;

namespace {

struct Options {
  std::string folder = ".";
  int64_t elements = 50'000'000, tile = 1 << 21, mib = 1024;
  int repeat = 5, buffers = 4, threads = 0;
  std::string dtype = "f32";
  zero::AioOptions aio;
};

/// Transfers the whole file by pread or pwrite in blocks, from `depth` threads: the speed of the disk.
void plain(const zero::SwapFile& file, const Tensor& memory, int64_t block, int depth, bool writes) {
  std::vector<std::thread> threads;
  for (int t = 0; t < depth; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t at = t * block; at < file.bytes(); at += depth * block) {
        auto* const data = static_cast<std::byte*>(memory.raw_data()) + at % memory.numel();
        const auto n = size_t(std::min(block, file.bytes() - at));
        const ssize_t done = writes ? pwrite(file.descriptor(), data, n, at) : pread(file.descriptor(), data, n, at);
        LOCKSTEP_CHECK(done == ssize_t(n), "the disk gave ", done, " of ", n, " bytes: ", std::strerror(errno),
                       "; free space, or use another disk");
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

/// Times, alternately, our FileQueue, plain requests one at a time, and plain requests from queue_depth * thread_count
/// threads.
void files(const Options& o) {
  const zero::SwapFile file(o.folder, "a benchmark", o.mib << 20, true);
  zero::FileQueue queue(o.aio);
  const Tensor memory = zero::aligned_bytes(64 << 20, false);
  const auto ours = [&](bool writes) {
    std::vector<zero::FileQueue::Transfer> on_their_way;
    for (int64_t at = 0; at < file.bytes(); at += 16 << 20) {  // four transfers in flight
      auto* const data = static_cast<std::byte*>(memory.raw_data()) + at % memory.numel();
      const int64_t n = std::min<int64_t>(16 << 20, file.bytes() - at);
      if (on_their_way.size() >= 4) on_their_way[on_their_way.size() - 4].wait();
      on_their_way.push_back(writes ? queue.write(file, at, data, n) : queue.read(file, at, data, n));
    }
    for (auto& t : on_their_way) t.wait();
  };
  const int depth = o.aio.queue_depth * o.aio.thread_count;
  fmt::print("{} MiB in {}, {}, {}, blocks of {} KiB, {} at a time\n", o.mib, o.folder,
             file.is_direct() ? "O_DIRECT" : "through the page cache", queue.engine(), o.aio.block_size >> 10, depth);
  for (const bool writes : {false, true}) {
    std::vector<double> mine, one, many;
    for (int i = 0; i < o.repeat; ++i) {
      mine.push_back(seconds_of([&] { ours(writes); }));
      one.push_back(seconds_of([&] { plain(file, memory, o.aio.block_size, 1, writes); }));
      many.push_back(seconds_of([&] { plain(file, memory, o.aio.block_size, depth, writes); }));
    }
    const auto speed = [&](const std::vector<double>& s) { return double(o.mib << 20) / 1e6 / median(s); };
    fmt::print("  {:5} {:7.0f} MB/s   {} one at a time {:7.0f} MB/s   {} at a time {:7.0f} MB/s   ours {:.0f} %\n",
               writes ? "write" : "read", speed(mine), writes ? "pwrite" : "pread", speed(one), depth, speed(many),
               100 * speed(mine) / std::max(speed(one), speed(many)));
  }
}

void steps(const Options& o) {
  const DType dtype = parse_dtype(o.dtype);
  struct Place {
    const char* name;
    Offload device;
    bool overlap;
  };
  for (const Place& place :
       {Place{"none", Offload::none, true}, Place{"cpu", Offload::cpu, true}, Place{"nvme", Offload::nvme, true},
        Place{"nvme, nothing overlaps", Offload::nvme, false}}) {
    dist::spawn(1, [&](int) {
      if (o.threads > 0) set_threads(o.threads);
      nn::Sequential model;  // layers of about a million elements each
      for (int64_t i = 0; i < std::max<int64_t>(1, o.elements >> 20); ++i)
        model.add(nn::Linear({.in = 1024, .out = 1024, .bias = false}));
      model.to(dtype);
      optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
      zero::ZeroOptions options;
      options.nonfinite = zero::NonFinite::propagate;
      options.sub_group_size = o.tile;
      options.aio = o.aio;
      zero::OffloadOptimizer& offload = options.offload_optimizer;
      offload.device = place.device;
      offload.nvme_path = o.folder;
      offload.buffer_count = o.buffers;
      offload.pipeline_read = offload.pipeline_write = place.overlap;
      zero::Zero z(model, optimizer, options);
      std::vector<double> times;
      for (int i = 0; i < o.repeat + 2; ++i) {
        sum(model(ones({1, 1024}).to(dtype))).backward();
        const double t = seconds_of([&] { z.step(); });
        if (i >= 2) times.push_back(t);
      }
      const int64_t n = model.parameter_count();
      fmt::print("  step of {:.1f} M in {}, {:22} {:8.1f} ms", double(n) / 1e6, o.dtype, place.name,
                 1e3 * median(times));
      if (place.device == Offload::nvme)
        fmt::print("   {:.0f} MB/s read and as much written",
                   double(n) * (dtype == f32 ? 8 : 12) / 1e6 / median(times));
      fmt::print("\n");
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  bench::Program app("offload: files and steps");
  app.add_option("--folder", o.folder);
  app.add_option("--mib", o.mib, "size of the file to read and write; 0: no file test");
  app.add_option("--elements", o.elements, "parameters of the step; 0: no step");
  app.add_option("--tile", o.tile);
  app.add_option("--buffers", o.buffers);
  app.add_option("--threads", o.threads);
  app.add_option("--repeat", o.repeat)->check(CLI::PositiveNumber);
  app.add_option("--dtype", o.dtype)->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--block", o.aio.block_size);
  app.add_option("--depth", o.aio.queue_depth);
  app.add_option("--io-threads", o.aio.thread_count);
  bool no_uring = false;
  app.add_flag("--no-uring", no_uring, "use pread and pwrite in threads instead of io_uring");
  return app.run(argc, argv, [&] {
    if (no_uring) o.aio.engine = zero::AioOptions::Engine::threads;
    if (o.mib > 0) files(o);
    if (o.elements > 0) steps(o);
  });
}
