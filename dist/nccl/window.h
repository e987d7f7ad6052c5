#pragma once
// Symmetric windows of NCCL (2.27 or later): memory registered by all ranks of a communicator. Collectives send and sum
// it in place, without intermediate copies.
//
//   allocate (ncclMemAlloc) ─▶ register, all ranks together ─▶ collectives ─▶ deregister ─▶ free (ncclMemFree)
//
// NCCL requires that either all ranks pass the same place of the same window to a collective, or none passes a window.
// So ranks create windows together, in one order and with one size.
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
  /// Lets the communicator free the memory when the next window is made, or at the communicator's end. The memory may
  /// still be in use, and the thread that drops the last reference must not wait (this may be the watchdog).
  ~Window();
  Window(const Window&) = delete;
  void* data() const { return data_; }  ///< the memory of the window
  /// Registers the window. Called by all ranks together, inside Watchdog::run().
  void open();
  /// Called after open(): makes the communicator close the window before it is destroyed.
  void keep();

 private:
  const std::shared_ptr<Communicator> comm_;
  const size_t bytes_;
  // If `handle_` is null after open(), NCCL does not support windows here and treats the memory as ordinary memory.
  void *data_ = nullptr, *handle_ = nullptr;
};

}  // namespace lockstep::dist
