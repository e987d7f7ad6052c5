#pragma once
// How many threads operations use.
#include <atomic>

namespace lockstep {

namespace detail {
extern std::atomic<int> threads;  // 0: not asked yet
int default_threads();
}  // namespace detail

/// Threads that operations use (OpenMP). Default: LOCKSTEP_THREADS, else OMP_NUM_THREADS, else the cores given to the
/// process. Error when n < 1.
void set_threads(int n);
inline int get_threads() {
  const int n = detail::threads.load(std::memory_order_relaxed);
  return n > 0 ? n : detail::default_threads();
}

}  // namespace lockstep
