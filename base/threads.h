#pragma once
// The number of threads that operations use.
#include <atomic>

namespace lockstep {

namespace detail {
extern std::atomic<int> threads;  // 0: not determined yet
int default_threads();
inline thread_local constinit int thread_limit = 0;  // 0: no limit
}  // namespace detail

/// Cores that the container may use (cgroup quota), since containers often see all cores. INT_MAX without a limit.
int container_cores();

/// Sets the number of threads that operations use (OpenMP). Default: LOCKSTEP_THREADS, else OMP_NUM_THREADS, else the
/// cores given to the process. Error unless 1 <= n <= 4096.
void set_threads(int n);
/// The number of threads that operations of this thread use; a ThreadLimit can lower it.
inline int get_threads() {
  int n = detail::threads.load(std::memory_order_relaxed);
  if (n <= 0) n = detail::default_threads();
  const int limit = detail::thread_limit;
  return limit > 0 && limit < n ? limit : n;
}

/// While a ThreadLimit lives, operations of this thread use at most `n` threads: for replicas and ranks that share the
/// cores of a process.
class ThreadLimit {
 public:
  explicit ThreadLimit(int n) : previous_(detail::thread_limit) { detail::thread_limit = n; }
  ~ThreadLimit() { detail::thread_limit = previous_; }
  ThreadLimit(const ThreadLimit&) = delete;

 private:
  const int previous_;
};

}  // namespace lockstep
