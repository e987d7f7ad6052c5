#pragma once
// What kernels find wrong in values that only they read: an index or a label outside its range. The first of it is kept
// in host memory that the device writes, and the next synchronisation, or copy to the host, raises it as an Error.
#include <cstdint>

#include "tensor/cuda/simt.h"

namespace lockstep::cuda {

/// Passed to a kernel by value: `if (!good(index[i], i)) ...` reports an index outside [0, limit); the kernel must then
/// leave that element alone and read and write nothing with the index.
struct RangeCheck {
  Report* report;
  const char* op;  ///< string constants of the host, carried back by the report
  const char* what;
  const char* place_name;
  int64_t limit;

  __device__ bool operator()(int64_t value, int64_t place) const {
    if (uint64_t(value) < uint64_t(limit)) return true;
    if (atomicCAS(&report->taken, 0u, 1u) == 0u) {
      report->op = op;
      report->what = what;
      report->place_name = place_name;
      report->limit = limit;
      report->value = value;
      report->place = place;
      __threadfence_system();
      *static_cast<volatile unsigned*>(&report->complete) = 1;
    }
    return false;
  }
};

/// The check for a kernel that this thread starts next: "[op] expected indices in [0, limit), got 12 at position 5".
inline RangeCheck check_indices(const char* op, int64_t limit) {
  return {report(), op, "indices", "at position", limit};
}
/// "[op] expected targets in [0, classes), got 12 in row 5". The kernel itself passes over targets to ignore.
inline RangeCheck check_targets(const char* op, int64_t classes) {
  return {report(), op, "targets", "in row", classes};
}

}  // namespace lockstep::cuda
