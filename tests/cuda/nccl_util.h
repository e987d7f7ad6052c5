#pragma once
// Shared by the tests of NCCL: ranks with devices of their own, and the errors that they throw.
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dist/process_group.h"
#include "tests/dist/job.h"
#include "tests/messages.h"

namespace testing {

/// The device of a rank; there are eight.
inline lockstep::Device device_of(int rank) { return {lockstep::Device::Type::cuda, int16_t(rank % 8)}; }

/// Throws unless `holds`, which ends the rank.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

inline std::string outcome(int n, const std::function<void(int)>& fn,
                           const lockstep::dist::SpawnOptions& options = {}) {
  return message([&] { lockstep::dist::spawn(n, fn, options); });
}

/// The error of each of `n` ranks that run fn; "(no error)" if it threw none.
inline std::vector<std::string> outcomes(int n, const std::function<void(int)>& fn, double timeout = 20) {
  std::vector<std::string> texts(size_t(n), "(no error)");
  (void)outcome(n,
                [&](int rank) {
                  try {
                    fn(rank);
                  } catch (const lockstep::Error& e) {
                    texts[size_t(rank)] = e.what();
                    throw;
                  }
                },
                {.timeout = lockstep::dist::Seconds(timeout), .heartbeat = lockstep::dist::Seconds(0.2)});
  return texts;
}

/// Waits until condition(), for at most 60 s.
template <class Condition> void until(Condition condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    require(std::chrono::steady_clock::now() < limit, "waited 60 s for what does not come");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace testing
