#pragma once
// Jobs whose ranks' errors are results of a test.
#include <functional>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "tests/messages.h"

namespace testing {

/// The error of a job of n ranks that run fn; "(no error)" if there was none.
inline std::string outcome(int n, const std::function<void(int rank)>& fn,
                           const lockstep::dist::SpawnOptions& options = {}) {
  return message([&] { lockstep::dist::spawn(n, fn, options); });
}
/// Checks that none of n ranks that run fn fails.
inline void check_ranks(int n, const std::function<void(int rank)>& fn,
                        const lockstep::dist::SpawnOptions& options = {}) {
  CHECK_ERROR_IS(lockstep::dist::spawn(n, fn, options), "(no error)");
}
/// The error of each of n ranks that run fn, with short timeouts; "(no error)" if it threw none.
inline std::vector<std::string> outcomes(int n, const std::function<void(int rank)>& fn, double timeout = 20) {
  std::vector<std::string> texts(size_t(n), "(no error)");
  const auto note = [&](int rank) {
    try {
      fn(rank);
    } catch (const std::exception& e) {
      texts[size_t(rank)] = e.what();
      throw;
    }
  };
  (void)outcome(n, note, {.timeout = lockstep::dist::Seconds(timeout), .heartbeat = lockstep::dist::Seconds(0.2)});
  return texts;
}
/// Checks that each of n ranks that run fn throws the same error, and that it has all of `parts`.
inline void check_reports(int n, const std::function<void(int rank)>& fn, const std::vector<std::string>& parts,
                          double timeout = 20) {
  const std::vector<std::string> texts = outcomes(n, fn, timeout);
  CAPTURE(texts[0]);
  for (const std::string& part : parts) CHECK(contains(texts[0], part));
  for (const std::string& text : texts) CHECK(text == texts[0]);
}

}  // namespace testing
