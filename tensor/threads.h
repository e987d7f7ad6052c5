#pragma once
// How many threads operations use.
#include <atomic>

namespace lockstep {

namespace detail {
extern std::atomic<int> threads;  // 0: not asked yet
int default_threads();
inline thread_local constinit int thread_limit = 0;  // 0: none
}  // namespace detail

/// Cores that the container may use: containers often see every core. INT_MAX where no limit is set.
int container_cores();

/// Threads that operations use (OpenMP). Default: LOCKSTEP_THREADS, else OMP_NUM_THREADS, else the cores given to the
/// process. Error when n < 1.
void set_threads(int n);
inline int get_threads() {
  int n = detail::threads.load(std::memory_order_relaxed);
  if (n <= 0) n = detail::default_threads();
  const int limit = detail::thread_limit;
  return limit > 0 && limit < n ? limit : n;
}

/// While it lives, operations of this thread use at most `n` threads: replicas and ranks that share a process share its
/// cores.
class ThreadLimit {
 public:
  explicit ThreadLimit(int n) : previous_(detail::thread_limit) { detail::thread_limit = n; }
  ~ThreadLimit() { detail::thread_limit = previous_; }
  ThreadLimit(const ThreadLimit&) = delete;

 private:
  const int previous_;
};

}  // namespace lockstep
