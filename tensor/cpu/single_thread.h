#pragma once
// Keeps oneDNN on one thread. By itself oneDNN would start threads, and its results would depend on their number.
// Instead Lockstep divides the work, depending on the shape alone, and its own threads call oneDNN for each part.
#include <omp.h>

namespace lockstep::on_cpu {

/// While it lives, libraries that use OpenMP start no threads when this thread calls them. Costs a few nanoseconds.
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
