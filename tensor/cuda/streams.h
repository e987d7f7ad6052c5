#pragma once
// The thread's device and streams, for the backend. Internal.
#include <cuda_runtime_api.h>

namespace lockstep::cuda {

inline constexpr int most_devices = 64;
/// Makes `device` this thread's current one.
void select_device(int device);
/// The stream that this thread uses on a device.
cudaStream_t stream_of(int device);
/// Raises why the device is not to be believed; and, once, what kernels reported that have run on it.
void raise_report(int device);
void distrust(int device, const char* why);
/// nullptr: the device's default stream.
void set_stream(int device, cudaStream_t stream);

}  // namespace lockstep::cuda
