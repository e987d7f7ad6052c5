#pragma once
// Copies batches to a device through reused pinned memory, so that the program can make the next batch while this one
// is copied.
#include <vector>

#include "data/dataset.h"
#include "tensor/stream.h"

namespace lockstep::data {

/// Copies tensors to one device asynchronously.
class ToDevice {
 public:
  /// At most `slots` copies are in flight; the next one waits for the oldest.
  explicit ToDevice(Device device, int slots = 4);
  /// A copy of x on the device, ordered by its current stream; x may be changed at once. Returns x itself if it is
  /// already there or the device is the CPU.
  Tensor operator()(const Tensor& x);
  Example operator()(const Example& batch) { return {(*this)(batch.input), (*this)(batch.target)}; }
  Device device() const { return device_; }  ///< the destination

 private:
  struct Slot {
    Tensor pinned;  // u8 buffer
    Event done;
  };
  Device device_;
  size_t next_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace lockstep::data
