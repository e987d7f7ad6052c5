#pragma once
// Batches on their way to a device: they pass through pinned memory that is used again and again, so that the program
// can make the next batch while this one is copied.
#include <vector>

#include "data/dataset.h"
#include "tensor/stream.h"

namespace lockstep::data {

class ToDevice {
 public:
  /// `slots` copies may be under way at once; one more waits for the oldest.
  explicit ToDevice(Device device, int slots = 4);
  /// A copy of x on the device, in the order of its current stream; x itself may be changed at once. x as it is where
  /// it is there already, or the device is the CPU.
  Tensor operator()(const Tensor& x);
  Example operator()(const Example& batch) { return {(*this)(batch.input), (*this)(batch.target)}; }
  Device device() const { return device_; }

 private:
  struct Slot {
    Tensor pinned;  // bytes
    Event done;
  };
  Device device_;
  size_t next_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace lockstep::data
