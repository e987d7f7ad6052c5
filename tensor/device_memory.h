#pragma once
// Reports and limits the memory of one device. This works for virtual CPU devices too, so that a model for several
// small devices can be tried on one machine.
#include <cstdint>

#include "tensor/memory.h"

namespace lockstep {

/// The memory_report() of this device alone. The category Memory::offload is left out, because it lies in host memory.
MemoryReport device_memory(Device device);
/// Sets the peaks of device_memory() to the current values.
void reset_peak_device_memory(Device device);

/// Limits the bytes of tensors on a device; 0: no limit. An allocation that exceeds the limit is an Error.
/// Memory::offload does not count. Threads that allocate at the same moment may exceed the limit together.
void set_memory_limit(Device device, int64_t bytes);
/// The limit in bytes; 0: none.
int64_t memory_limit(Device device);
/// Bytes that a device can hold: memory_limit() or the GPU's memory, whichever is less. A CPU device has only a limit.
/// 0: unknown.
int64_t memory_size(Device device);

}  // namespace lockstep
