#pragma once
// Copies batches to a device through reused pinned memory, while the program makes the next batch during the copy.
#include <vector>

#include "data/dataset.h"
#include "tensor/stream.h"

namespace lockstep::data {

/// Copies tensors to one device asynchronously.
class ToDevice {
 public:
  /// At most `slots` copies are in flight: a further copy waits for the oldest.
  explicit ToDevice(Device device, int slots = 4);
  /// Returns a copy of x on the device, ordered by the device's current stream, or x itself if x is already there. x
  /// may be changed right after the call.
  Tensor operator()(const Tensor& x);
  /// Returns the batch with copies of all its tensors.
  template <HoldsTensors B> B operator()(B batch) {
    each_tensor(batch, [this](const auto&, Tensor& x) { x = (*this)(x); });
    return batch;
  }
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
