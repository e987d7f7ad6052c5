#pragma once
// Ranks in threads of a test.
#include <functional>
#include <mutex>
#include <vector>

#include "dist/process_group.h"

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

}  // namespace testing
