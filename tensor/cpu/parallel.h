#pragma once
// Splitting a loop over threads. Results must not depend on the number of threads: a piece computes its own outputs,
// and sums that cross pieces are made of blocks of a fixed length, added in a fixed order afterwards.
#include <algorithm>
#include <cstdint>

#include "tensor/threads.h"

#if defined(__SANITIZE_THREAD__)
#define LOCKSTEP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LOCKSTEP_TSAN 1
#endif
#endif
#if defined(LOCKSTEP_TSAN)
#include <thread>  // ThreadSanitizer cannot see into the OpenMP runtime, so its build forks plain threads
#include <vector>
#else
#include <omp.h>
#endif

namespace lockstep::on_cpu {

inline constexpr int64_t grain = 1 << 14;        // elements for which a second thread pays
inline constexpr int64_t light_grain = 1 << 15;  // the same where an element is only moved or added

inline int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

/// Calls fn(begin, end) for disjoint ranges that cover [0, n), on up to get_threads() threads, each range at least
/// `grain` long. Runs in the caller when there is only one range or when already inside a parallel region. fn must not
/// throw.
template <class Fn> void parallel_for(int64_t n, int64_t grain, Fn&& fn) {
  if (n <= 0) return;
  const int64_t pieces = std::min<int64_t>(get_threads(), std::max<int64_t>(1, n / std::max<int64_t>(grain, 1)));
#if defined(LOCKSTEP_TSAN)
  if (pieces <= 1) return fn(int64_t(0), n);
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < pieces; ++i) threads.emplace_back([&, i] { fn(n * i / pieces, n * (i + 1) / pieces); });
  fn(int64_t(0), n / pieces);
  for (auto& thread : threads) thread.join();
#else
  if (pieces <= 1 || omp_in_parallel()) return fn(int64_t(0), n);
#pragma omp parallel for schedule(static, 1) num_threads(int(pieces))
  for (int64_t i = 0; i < pieces; ++i) fn(n * i / pieces, n * (i + 1) / pieces);
#endif
}

}  // namespace lockstep::on_cpu
