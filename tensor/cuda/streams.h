#pragma once
// The thread's device and streams, for the backend. Internal.
#include <cuda_runtime_api.h>

namespace lockstep::cuda {

inline constexpr int most_devices = 64;
/// Makes `device` this thread's current one.
void select_device(int device);
/// The stream that this thread uses on a device.
cudaStream_t stream_of(int device);
/// Raises, once, what kernels reported that have run on the device.
void raise_report(int device);
/// nullptr: the device's default stream.
void set_stream(int device, cudaStream_t stream);

}  // namespace lockstep::cuda
