#pragma once
// Selects the device and the streams of this thread. Internal to the CUDA backend.
#include <cuda_runtime_api.h>

namespace lockstep::cuda {

/// The largest number of devices that this process can use.
inline constexpr int max_devices = 64;
/// Makes `device` this thread's current device. All work on a device begins with this call. Error if the thread is
/// recording a graph of another device, or if this build has no code for the device.
void select_device(int device);
/// Makes `device` CUDA's current device during its lifetime, and the previous device afterwards. Unlike select_device()
/// it throws nothing: for destructors, and for work that has to be done after an error.
class OnDevice {
 public:
  explicit OnDevice(int device) noexcept : device_(device) {
    cudaGetDevice(&before_);
    if (before_ != device_) cudaSetDevice(device_);
  }
  ~OnDevice() {
    if (before_ != device_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;

 private:
  int device_, before_ = 0;
};
/// True if this build has code that the device can run.
bool has_code_for(int device);
/// The stream that this thread uses on `device`.
cudaStream_t stream_of(int device);
/// After distrust(device, why), throws an Error with the text `why`. Otherwise, if a kernel on `device` has reported an
/// index outside its range, throws an Error about it, once.
void raise_report(int device);
/// Makes raise_report(device) throw an Error with the text `why` on every call. distrust(device, nullptr) ends this.
void distrust(int device, const char* why);
/// Sets this thread's stream on `device`; nullptr: the device's default stream.
void set_stream(int device, cudaStream_t stream);

}  // namespace lockstep::cuda
