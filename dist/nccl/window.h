#pragma once
// Memory that all ranks of a communicator know of, which NCCL calls a symmetric window (from 2.27 on): what lies there
// is sent, and summed, where it is, without copies on the way.
//
//   allocate (ncclMemAlloc) ─▶ register, all ranks together ─▶ collectives ─▶ deregister ─▶ free (ncclMemFree)
//
// NCCL wants all ranks to give a collective the same place of the same window, or none of them one. So ranks make
// windows together, in one order and of one size.
#include <memory>

#include "dist/nccl/watchdog.h"

namespace lockstep::dist {

/// Whether this NCCL has windows, and LOCKSTEP_NCCL_WINDOWS does not turn them off.
bool has_windows();

class Window {
 public:
  /// Allocates; this rank's alone.
  Window(std::shared_ptr<Communicator> comm, int64_t bytes);
  /// What is under way may be of this memory, and who forgets it last must not wait (the watchdog, say). So it is
  /// closed and freed when the next one is made, or when the communicator goes.
  ~Window();
  Window(const Window&) = delete;
  void* data() const { return data_; }
  /// All ranks together, inside Watchdog::run().
  void open();
  /// After it: the communicator closes the window before it goes.
  void keep();

 private:
  const std::shared_ptr<Communicator> comm_;
  const size_t bytes_;
  void *data_ = nullptr, *handle_ = nullptr;  // a null handle: NCCL has no windows here, and takes it as any memory
};

}  // namespace lockstep::dist
