#pragma once
// Options of offload: where ZeRO keeps what is used once a step, in place of the memory that computes.
//
//                            optimizer state (offload_optimizer)              parameter shards (offload_param, stage 3)
//   none                     Memory::optimizer                                Memory::parameter
//   cpu                      host memory, Memory::offload                     host memory, Memory::offload
//   nvme                     a file; buffer_count tiles in memory             a file; buffer_count shards in memory
//
// Names are those of DeepSpeed's keys. Sizes count elements, if nothing else is said. Bits are the same with every
// choice.
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::zero {

enum class Offload : uint8_t { none, cpu, nvme };
std::string_view name_of(Offload device);

struct OffloadOptimizer {
  Offload device = Offload::none;
  std::string nvme_path = "";  ///< nvme: a folder for this rank's file, which has no name there
  bool pin_memory = true;      ///< nvme: buffers are locked in memory, as far as `ulimit -l` allows
  int buffer_count = 4;        ///< nvme: tiles in memory at a time; below 3 reading and writing wait for each other
  bool pipeline_read = true;   ///< nvme: the next tiles are read while one is computed
  bool pipeline_write = true;  ///< nvme: and the last ones written
  bool fast_init = false;      ///< nvme: room on the disk is reserved, but not written once at the start
  double ratio = 1;            ///< stage 3: this part of the elements is offloaded, the rest keeps its state in memory
};

struct OffloadParam {
  Offload device = Offload::none;
  std::string nvme_path = "";
  bool pin_memory = true;
  int buffer_count = 5;                ///< nvme: shards in memory at a time, on their way to be gathered
  int64_t buffer_size = 100'000'000;   ///< nvme: the most that one of these shards may have
  int64_t max_in_cpu = 1'000'000'000;  ///< nvme: so many elements of this rank's shards stay in memory
};

/// How files are read and written.
struct AioOptions {
  enum class Engine : uint8_t { automatic, uring, threads };
  int64_t block_size = 1 << 20;  ///< bytes of one request, a multiple of 4096
  int queue_depth = 8;           ///< requests on their way at a time, for each thread
  int thread_count = 1;
  bool single_submit = false;  ///< one system call for each request, not for all that are ready
  bool overlap_events = true;  ///< false: the next requests wait until all those before them are done
  Engine engine =
      Engine::automatic;  ///< uring: io_uring; threads: pread and pwrite; automatic: io_uring where the system has it
};

/// Errors that say what was expected.
void check(const OffloadOptimizer& o, int stage);
void check(const OffloadParam& o, int stage);
void check(const AioOptions& o);

}  // namespace lockstep::zero
