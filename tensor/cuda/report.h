#pragma once
// Range errors that kernels find: an index or a label outside its range. The host cannot check these values, because
// they are in device memory. The first error is stored in host memory that the device can write, and the next
// synchronisation or copy to the host throws it.
#include <cstdint>

#include "tensor/cuda/simt.h"

namespace lockstep::cuda {

/// A check of indices, passed to a kernel by value. `if (!good(index[i], i)) ...` reports an index outside [0, limit);
/// the kernel must then skip that element and access no memory with the index.
struct RangeCheck {
  Report* report;
  const char* op;  ///< op, what and place_name: string constants on the host; the report returns their addresses
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

/// The check for an index kernel that this thread starts next: "[op] expected indices in [0, limit), got 12 at position
/// 5".
inline RangeCheck check_indices(const char* op, int64_t limit) {
  return {report(), op, "indices", "at position", limit};
}
/// check_indices() for labels: "[op] expected targets in [0, classes), got 12 in row 5". The kernel skips ignored
/// targets itself.
inline RangeCheck check_targets(const char* op, int64_t classes) {
  return {report(), op, "targets", "in row", classes};
}

}  // namespace lockstep::cuda
