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
  /// The memory may still be in use, and the thread that drops the last reference must not wait (it may be the
  /// watchdog). So the memory is freed when the next window is made, or with the communicator.
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
  // A null handle: NCCL does not support windows here and treats it as ordinary memory.
  void *data_ = nullptr, *handle_ = nullptr;
};

}  // namespace lockstep::dist
