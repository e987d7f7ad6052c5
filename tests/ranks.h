#pragma once
// Ranks in threads of a test.
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "tests/messages.h"

namespace testing {

/// Runs fn on n ranks and returns the result of each. Throws the error of the first rank that fails.
template <class Result>
std::vector<Result> on_ranks(int n, const std::function<Result(int rank)>& fn,
                             const lockstep::dist::SpawnOptions& options = {.timeout = lockstep::dist::Seconds(60)}) {
  std::vector<Result> results(static_cast<size_t>(n));
  std::mutex mutex;
  lockstep::dist::spawn(
      n,
      [&](int rank) {
        Result result = fn(rank);
        const std::lock_guard lock(mutex);
        results[size_t(rank)] = std::move(result);
      },
      options);
  return results;
}
/// Runs fn on n ranks, for tests that compare nothing between ranks.
inline void on_ranks(int n, const std::function<void(int rank)>& fn,
                     const lockstep::dist::SpawnOptions& options = {.timeout = lockstep::dist::Seconds(60)}) {
  lockstep::dist::spawn(n, fn, options);
}
/// A new group of all ranks.
inline std::shared_ptr<lockstep::dist::ProcessGroup> everyone(const std::string& name = "everyone") {
  std::vector<int> ranks(static_cast<size_t>(lockstep::dist::world().size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return lockstep::dist::world().new_group(ranks, name);
}
/// Runs fn on n ranks that are processes. Checks that none fails; fn must throw where it finds a mistake.
inline void on_processes(int n, const std::function<void(int rank)>& fn, double timeout = 60) {
  CHECK_ERROR_IS(
      lockstep::dist::spawn(
          n, fn, {.kind = lockstep::dist::SpawnOptions::Kind::processes, .timeout = lockstep::dist::Seconds(timeout)}),
      "(no error)");
}

}  // namespace testing
