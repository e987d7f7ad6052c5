#pragma once
// Keeps oneDNN on one thread. It would start threads by itself, and its results would depend on their number. Work is
// split over threads here, by shape, so every call to oneDNN is made on one thread.
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
