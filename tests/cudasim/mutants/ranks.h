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

  /// Waits for the stream without relying on the peers. If the communicator fails or nothing arrives, aborts it and
  /// returns false.
  bool wait() const {
    ncclResult_t code = ncclSuccess;
    for (int i = 0; i < 20000 && !failed; ++i) {
      ncclCommGetAsyncError(comm, &code);
      if (code != ncclSuccess && code != ncclInProgress) break;
      if (code == ncclSuccess && cudaStreamQuery(stream) == cudaSuccess) return true;
      usleep(100);
    }
    if (!failed) ncclCommAbort(comm);
    failed = true;
    return false;
  }
};

/// Runs body as this rank of a new communicator with this id; false on failure.
inline bool with_comm(int rank, const ncclUniqueId& id, const std::function<bool(const Rank&)>& body) {
  Rank r{rank};
  cudaSetDevice(rank);
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
inline bool as_threads(const std::function<bool(const Rank&)>& body) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { good += with_comm(rank, id, body); });
  for (std::thread& thread : threads) thread.join();
  return good == ranks;
}

/// A rank's test values.
inline std::vector<float> values_of(int rank) { return std::vector<float>(2 * n, float(rank + 1)); }

}  // namespace mutants
