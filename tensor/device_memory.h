#pragma once
// What each device holds, virtual CPU devices one by one, and limits on it: a model for several small devices can be
// tried on one machine.
#include <cstdint>

#include "tensor/memory.h"

namespace lockstep {

/// As memory_report(), of this device alone: without other virtual ones, and without Memory::offload, which is in the
/// host's memory.
MemoryReport device_memory(Device device);
void reset_peak_device_memory(Device device);

/// From now on an allocation that would take the device beyond `bytes` is an Error; 0: no limit. Memory::offload does
/// not count. Threads that allocate at the same moment may pass it together.
void set_memory_limit(Device device, int64_t bytes);
int64_t memory_limit(Device device);

}  // namespace lockstep
