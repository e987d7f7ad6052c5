// Threads by OpenMP. ThreadSanitizer cannot see into OpenMP's runtime, so its build starts plain threads.
#include "tensor/cpu/parallel.h"

#if defined(__SANITIZE_THREAD__)
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

namespace lockstep::on_cpu {

#if defined(__SANITIZE_THREAD__)

int openmp_version() { return 0; }
bool inside_parallel_for() { return false; }

void run_pieces(int64_t pieces, void (*run)(void* fn, int64_t i), void* fn) {
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < pieces; ++i) threads.emplace_back([=] { run(fn, i); });
  run(fn, 0);
  for (auto& thread : threads) thread.join();
}

#else

int openmp_version() { return _OPENMP; }
bool inside_parallel_for() { return omp_in_parallel(); }

void run_pieces(int64_t pieces, void (*run)(void* fn, int64_t i), void* fn) {
#pragma omp parallel for schedule(static, 1) num_threads(int(pieces))
  for (int64_t i = 0; i < pieces; ++i) run(fn, i);
}

#endif

}  // namespace lockstep::on_cpu
