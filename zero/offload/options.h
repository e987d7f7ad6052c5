#pragma once
// Options of offload: state that is used once per step can be kept outside the memory of the computing device.
//
//          optimizer state (offload_optimizer)                parameter shards (offload_param, stage 3)
//   none   device memory, Memory::optimizer                   device memory, Memory::parameter
//   cpu    host memory, Memory::offload                       host memory, Memory::offload
//   nvme   a file, and buffer_count tiles in host memory      a file, and buffer_count shards in host memory
//
// Options have DeepSpeed's names. Sizes are in elements unless their comment says bytes. Results are bit-identical for
// every choice.
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::zero {

/// Places where state can be kept: none: the computing device; cpu: host memory; nvme: a file.
enum class Offload : uint8_t { none, cpu, nvme };
std::string_view name_of(Offload device);  ///< "none", "cpu" or "nvme"

/// Offload of optimizer state.
struct OffloadOptimizer {
  Offload device = Offload::none;
  std::string nvme_path = "";  ///< nvme: folder for this rank's file, which is unlinked at once
  bool pin_memory = true;      ///< nvme: lock the buffers in memory, as far as `ulimit -l` allows
  int buffer_count = 4;        ///< nvme: tiles in memory; with fewer than 3, reads and writes wait for each other
  bool pipeline_read = true;   ///< nvme: read the next tiles while one is updated
  bool pipeline_write = true;  ///< nvme: write the last tiles while one is updated
  bool fast_init = false;      ///< true: nvme only reserves the space on disk, without writing it once at the start
  double ratio = 1;            ///< stage 3: fraction of the elements that is offloaded
};

/// Offload of parameter shards in stage 3.
struct OffloadParam {
  Offload device = Offload::none;
  std::string nvme_path = "";          ///< folder for the file; see OffloadOptimizer
  bool pin_memory = true;              ///< nvme: lock the buffers in memory; see OffloadOptimizer
  int buffer_count = 5;                ///< nvme: shards in memory while they are gathered
  int64_t buffer_size = 100'000'000;   ///< nvme: largest shard, in elements
  int64_t max_in_cpu = 1'000'000'000;  ///< nvme: elements of this rank's shards that stay in memory
};

/// Options of reading and writing files (FileQueue), with DeepSpeed's names.
struct AioOptions {
  enum class Engine : uint8_t { automatic, uring, threads };  ///< how requests are submitted
  int64_t block_size = 1 << 20;                               ///< bytes of a request, a multiple of 4096
  int queue_depth = 8;                                        ///< requests in flight per thread
  int thread_count = 1;                                       ///< worker threads
  bool single_submit = false;  ///< true: one system call per request instead of one for all requests that are ready
  bool overlap_events = true;  ///< true: submit at any time; false: only when no request is in flight
  /// uring: io_uring; threads: pread and pwrite; automatic: io_uring if the system has it
  Engine engine = Engine::automatic;
};

/// Error for options out of range, or that the stage does not support.
void check(const OffloadOptimizer& o, int stage);
void check(const OffloadParam& o, int stage);
void check(const AioOptions& o);

}  // namespace lockstep::zero
