#pragma once
// Splits a loop into pieces, which run on several threads. Results must not depend on the number of threads: each piece
// computes outputs of its own. A sum over several pieces is divided into blocks of a fixed length, whose sums are added
// afterwards in a fixed order.
#include <algorithm>
#include <cstdint>

#include "base/threads.h"

namespace lockstep::on_cpu {

inline constexpr int64_t grain = 1 << 14;        // at least this many elements justify another thread
inline constexpr int64_t light_grain = 1 << 15;  // at least this many, if an element is only moved or added

/// n / unit, rounded up.
inline int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

/// The month in which OpenMP's version was published, such as 201511; 0 without OpenMP.
int openmp_version();
/// True on a thread that runs a piece of a parallel_for().
bool inside_parallel_for();
/// Calls run(fn, i) for i from 0 to pieces - 1, each on a thread of its own. All CPU kernels start their threads here.
void run_pieces(int64_t pieces, void (*run)(void* fn, int64_t i), void* fn);

/// Calls fn(begin, end) for disjoint ranges that cover [0, n), on up to get_threads() threads, each range at least
/// `grain` long. Runs in the caller when there is only one range or when already inside a parallel region. fn must not
/// throw.
template <class Fn> void parallel_for(int64_t n, int64_t grain, Fn&& fn) {
  if (n <= 0) return;
  const int64_t pieces = std::min<int64_t>(get_threads(), std::max<int64_t>(1, n / std::max<int64_t>(grain, 1)));
  if (pieces <= 1 || inside_parallel_for()) return fn(int64_t(0), n);
  auto run_piece = [&](int64_t i) { fn(n * i / pieces, n * (i + 1) / pieces); };
  run_pieces(
      pieces, [](void* run, int64_t i) { (*static_cast<decltype(run_piece)*>(run))(i); }, &run_piece);
}

}  // namespace lockstep::on_cpu
