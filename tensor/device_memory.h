#pragma once
// Memory by device, counting each virtual CPU device on its own, and limits: to try a model for several small devices
// on one machine.
#include <cstdint>

#include "tensor/memory.h"

namespace lockstep {

/// memory_report() for this device alone: without other virtual devices, and without Memory::offload, which lies in
/// host memory.
MemoryReport device_memory(Device device);
/// Sets the peaks of device_memory() to the current values.
void reset_peak_device_memory(Device device);

/// Limits the bytes on a device: an allocation beyond is an Error. 0: no limit. Memory::offload does not count. Threads
/// that allocate at the same moment may exceed the limit together.
void set_memory_limit(Device device, int64_t bytes);
/// The limit in bytes; 0: none.
int64_t memory_limit(Device device);
/// All memory of a GPU in bytes, or its limit if that is less; of a CPU device the limit. 0: unknown.
int64_t memory_size(Device device);

}  // namespace lockstep
