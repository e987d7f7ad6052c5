#pragma once
// oneDNN forks by itself unless it is told not to, and its bits then depend on the number of threads. Work is split
// over threads here, by shape, so every call to it is made on one thread.
#include <omp.h>

namespace lockstep::on_cpu {

/// While it lives, libraries that this thread calls and that use OpenMP do not fork. Costs a few nanoseconds.
class SingleThread {
 public:
  SingleThread() { omp_set_num_threads(1); }
  ~SingleThread() { omp_set_num_threads(previous_); }
  SingleThread(const SingleThread&) = delete;
  SingleThread& operator=(const SingleThread&) = delete;

 private:
  const int previous_ = omp_get_max_threads();
};

}  // namespace lockstep::on_cpu
