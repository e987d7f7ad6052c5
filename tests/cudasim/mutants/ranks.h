#pragma once
// Ranks for planted bugs: threads with a communicator and a stream each.
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tests/cudasim/mutants/mutants.h"

namespace mutants {

inline constexpr int ranks = 2;
inline constexpr size_t n = 100;

struct Rank {
  int rank;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

  mutable bool failed = false;

  /// Waits without trusting the peers; when the communicator fails or nothing comes it is aborted, and the answer is
  /// false.
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

inline bool as_threads(const std::function<bool(const Rank&)>& body) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { good += with_comm(rank, id, body); });
  for (std::thread& thread : threads) thread.join();
  return good == ranks;
}

inline std::vector<float> values_of(int rank) { return std::vector<float>(2 * n, float(rank + 1)); }

}  // namespace mutants
