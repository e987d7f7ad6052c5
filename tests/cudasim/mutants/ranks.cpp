// Planted bugs in what ranks ask of NCCL, with threads and with processes as ranks.
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tests/cudasim/mutants/mutants.h"

namespace mutants {
namespace {

constexpr int ranks = 2;
constexpr size_t n = 100;

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

bool with_comm(int rank, const ncclUniqueId& id, const std::function<bool(const Rank&)>& body) {
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

bool as_threads(const std::function<bool(const Rank&)>& body) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { good += with_comm(rank, id, body); });
  for (std::thread& thread : threads) thread.join();
  return good == ranks;
}
bool as_processes(const std::function<bool(const Rank&)>& body) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(fork());
    if (children.back() == 0) _exit(with_comm(rank, id, body) ? 0 : 1);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    good = good && status == 0;
  }
  return good;
}

std::vector<float> values_of(int rank) { return std::vector<float>(2 * n, float(rank + 1)); }

// Everything once, one after the other.
bool all_collectives(const Rank& r, size_t count) {
  const Array x(values_of(r.rank)), out(2 * n);
  const auto holds = [&](size_t begin, size_t end, float value) {
    if (!r.wait()) return false;
    const std::vector<float> got = out.get();
    for (size_t i = begin; i < end; ++i)
      if (got[i] != value) return false;
    return true;
  };
  const int other = 1 - r.rank;
  ncclAllReduce(x, out, count, ncclFloat32, ncclSum, r.comm, r.stream);
  if (!holds(0, n, 3)) return false;
  ncclAllReduce(x, out, n, ncclFloat32, ncclAvg, r.comm, r.stream);
  if (!holds(0, n, 1.5f)) return false;
  ncclBroadcast(x, out, n, ncclFloat32, 1, r.comm, r.stream);
  if (!holds(0, n, 2)) return false;
  ncclReduceScatter(x, out, n, ncclFloat32, ncclMax, r.comm, r.stream);
  if (!holds(0, n, 2)) return false;
  ncclAllGather(x, out, n, ncclFloat32, r.comm, r.stream);
  if (!holds(0, n, 1) || !holds(n, 2 * n, 2)) return false;
  ncclGroupStart();
  ncclSend(x, n, ncclFloat32, other, r.comm, r.stream);
  ncclRecv(out, n, ncclFloat32, other, r.comm, r.stream);
  ncclGroupEnd();
  if (!holds(0, n, float(other + 1))) return false;
  ncclComm_t alone = nullptr;
  ncclResult_t code = ncclCommSplit(r.comm, r.rank, 0, &alone, nullptr);
  const auto is_settled = [&] {
    for (int i = 0; i < 30000 && alone; ++i) {
      ncclCommGetAsyncError(alone, &code);
      if (code != ncclInProgress) break;
      usleep(100);
    }
    return code == ncclSuccess;
  };
  if (!is_settled()) return false;
  ncclAllReduce(x, out, n, ncclFloat32, ncclSum, alone, r.stream);
  if (!is_settled()) return false;
  const bool good = holds(0, n, float(r.rank + 1));
  ncclCommDestroy(alone);
  return good;
}
bool counts_that_differ(bool bug) {
  return as_threads([=](const Rank& r) { return all_collectives(r, bug && r.rank == 1 ? n + 1 : n); });
}
bool counts_that_differ_in_processes(bool bug) {
  return as_processes([=](const Rank& r) { return all_collectives(r, bug && r.rank == 1 ? n + 1 : n); });
}
bool both_send_first(bool bug) {
  return as_threads([=](const Rank& r) {
    const Array x(values_of(r.rank)), out(2 * n);
    const int other = 1 - r.rank;
    if (!bug) ncclGroupStart();
    ncclSend(x, n, ncclFloat32, other, r.comm, r.stream);
    ncclRecv(out, n, ncclFloat32, other, r.comm, r.stream);
    if (!bug) ncclGroupEnd();
    return r.wait();
  });
}
bool a_collective_that_one_rank_leaves_out(bool bug) {
  return as_threads([=](const Rank& r) {
    const Array x(values_of(r.rank));
    if (!bug || r.rank == 0) ncclAllReduce(x, x, n, ncclFloat32, ncclSum, r.comm, r.stream);
    return r.wait();
  });
}
bool two_ranks_on_one_device(bool bug) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      cudaSetDevice(bug ? 0 : rank);
      ncclComm_t comm = nullptr;
      good += ncclCommInitRank(&comm, ranks, id, rank) == ncclSuccess;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return good == ranks;
}

}  // namespace

std::vector<Case> rank_cases() {
  return {
      {"counts that differ", counts_that_differ, every},
      {"counts that differ, in processes", counts_that_differ_in_processes, every},
      {"both ranks send first", both_send_first, every},
      {"a collective that one rank leaves out", a_collective_that_one_rank_leaves_out, every},
      {"two ranks on one device", two_ranks_on_one_device, every},
  };
}

}  // namespace mutants
