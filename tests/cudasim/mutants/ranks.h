#pragma once
// Ranks for planted bugs: threads (or processes) that each have a communicator and a stream.
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tests/cudasim/mutants/mutants.h"

namespace mutants {

/// Number of ranks, and elements per rank in the tests.
inline constexpr int ranks = 2;
inline constexpr size_t n = 100;

/// A rank with its communicator and stream.
struct Rank {
  int rank;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

  mutable bool failed = false;

  /// Waits until NCCL has put the calls on their stream; false if they failed.
  bool settles() const {
    ncclResult_t code = ncclInProgress;
    for (int i = 0; i < 20000 && code == ncclInProgress; ++i) ncclCommGetAsyncError(comm, &code);
    return code == ncclSuccess;
  }
  /// Waits for the stream without relying on the peers; false if the communicator fails or nothing arrives.
  bool is_done(int polls) const {
    ncclResult_t code = ncclSuccess;
    for (int i = 0; i < polls && (code == ncclSuccess || code == ncclInProgress); ++i) {
      ncclCommGetAsyncError(comm, &code);
      if (code == ncclSuccess && cudaStreamQuery(stream) == cudaSuccess) return true;
      usleep(100);
    }
    return false;
  }
  /// The same, and aborts the communicator where it returns false.
  bool wait() const {
    if (!failed && is_done(20000)) return true;
    if (!failed) ncclCommAbort(comm);
    failed = true;
    return false;
  }
};

/// Runs body as this rank of a new communicator with this id; false on failure.
inline bool with_comm(int rank, const ncclUniqueId& id, const std::function<bool(const Rank&)>& body,
                      bool on_first_device = false) {
  Rank r{rank};
  cudaSetDevice(on_first_device ? 0 : rank);
  cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t begun = ncclCommInitRankConfig(&r.comm, ranks, id, rank, &config);
  if (begun != ncclSuccess && begun != ncclInProgress) return false;
  const bool good = r.wait() && body(r);
  if (!r.failed) good ? ncclCommDestroy(r.comm) : ncclCommAbort(r.comm);
  return good;
}

/// Runs body on all ranks, as threads; true if all succeed.
inline bool as_threads(const std::function<bool(const Rank&)>& body, bool on_first_device = false) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { good += with_comm(rank, id, body, on_first_device); });
  for (std::thread& thread : threads) thread.join();
  return good == ranks;
}

/// A rank's test values.
inline std::vector<float> values_of(int rank) { return std::vector<float>(2 * n, float(rank + 1)); }

}  // namespace mutants
