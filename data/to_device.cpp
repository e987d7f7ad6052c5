// Copies batches to a device: see to_device.h.
#include "data/to_device.h"

#include <cstring>

#include "tensor/ops.h"

namespace lockstep::data {

ToDevice::ToDevice(Device device, int slots) : device_(device) {
  LOCKSTEP_CHECK(slots >= 1, "[ToDevice] expected at least 1 slot, got ", slots);
  check_device("ToDevice", device);
  for (int i = 0; i < slots; ++i) slots_.push_back({Tensor(), Event(device)});
}

Tensor ToDevice::operator()(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined(), "[ToDevice] expected a tensor, got an undefined one; create it first");
  if (device_.is_cpu() || !x.device().is_cpu() || x.numel() == 0) return x.to(device_);
  Slot& slot = slots_[next_++ % slots_.size()];
  const Tensor source = x.contiguous();
  const int64_t bytes = source.numel() * size_of(source.dtype());
  slot.done.synchronize();
  if (!slot.pinned.defined() || slot.pinned.numel() < bytes) slot.pinned = empty_pinned({bytes}, u8, device_);
  std::memcpy(slot.pinned.raw_data(), source.raw_data(), size_t(bytes));
  const Tensor out = empty(x.shape(), {.dtype = x.dtype(), .device = device_});
  copy_async(Tensor(slot.pinned.storage(), 0, x.shape(), contiguous_strides(x.shape()), x.dtype()), out);
  slot.done.record();
  return out;
}

}  // namespace lockstep::data
