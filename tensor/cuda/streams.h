#pragma once
// This thread's device and streams, for the backend. Internal.
#include <cuda_runtime_api.h>

namespace lockstep::cuda {

/// Devices that this process can address.
inline constexpr int most_devices = 64;
/// Makes `device` this thread's current device.
void select_device(int device);
/// The stream that this thread uses on `device`.
cudaStream_t stream_of(int device);
/// Throws the reason given to distrust(), if any; else throws, once, the range error that kernels reported on `device`.
void raise_report(int device);
/// Makes raise_report() throw `why` from now on; nullptr ends that.
void distrust(int device, const char* why);
/// Sets this thread's stream on `device`; nullptr: the device's default stream.
void set_stream(int device, cudaStream_t stream);

}  // namespace lockstep::cuda
