#pragma once
// Symmetric windows of NCCL (2.27 or later): memory registered by all ranks of a communicator. Collectives send and sum
// it in place, without intermediate copies.
//
//   allocate (ncclMemAlloc) ─▶ register, all ranks together ─▶ collectives ─▶ deregister ─▶ free (ncclMemFree)
//
// NCCL requires that either all ranks pass memory at the same offset of the same window to a collective, or none passes
// a window. So all ranks create their windows together, in the same order and with the same sizes.
#include <memory>

#include "dist/nccl/watchdog.h"

namespace lockstep::dist {

/// True if this NCCL supports windows and LOCKSTEP_NCCL_WINDOWS=0 is not set.
bool has_windows();

/// The memory of one window.
class Window {
 public:
  /// Allocates the memory; not collective.
  Window(std::shared_ptr<Communicator> comm, int64_t bytes);
  /// Does not free the memory: a collective may still use it, and this thread, which may be the watchdog's, must not
  /// wait for the collective. The communicator frees the memory when it makes the next window, or at its own end.
  ~Window();
  Window(const Window&) = delete;
  void* data() const { return data_; }  ///< the memory of the window
  /// Registers the window. Called by all ranks together, inside Watchdog::run().
  void open();
  /// Called after open(): makes the communicator close this window when the communicator ends.
  void keep();

 private:
  const std::shared_ptr<Communicator> comm_;
  const size_t bytes_;
  // If `handle_` is null after open(), NCCL does not support windows here and treats the memory as ordinary memory.
  void *data_ = nullptr, *handle_ = nullptr;
};

}  // namespace lockstep::dist
