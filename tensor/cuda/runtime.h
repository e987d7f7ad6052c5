#pragma once
// What the CUDA backend needs of the runtime: errors, the current device and stream, scratch memory. Internal.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "tensor/tensor.h"

namespace lockstep::cuda {

/// Throws "[op] ..." with the name and text of the code, and what to do where there is something.
[[noreturn]] void fail_cuda(const char* op, cudaError_t code);
inline void check(const char* op, cudaError_t code) {
  if (code != cudaSuccess) [[unlikely]]
    fail_cuda(op, code);
}
[[noreturn]] void fail_launch(const char* op, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                              cudaError_t code);

/// Of this thread.
int current_device();
/// The stream on which this thread's work on its current device runs.
cudaStream_t current_stream();

/// What kernels are shaped by, read once for each device.
struct DeviceLimits {
  int multiprocessors = 1;
  int shared_per_block = 48 * 1024;  ///< with opt-in
  int major = 0, minor = 0;          ///< compute capability
};
const DeviceLimits& limits();
/// Blocks that a kernel that strides over its elements should start at most.
int64_t most_blocks();

/// What a kernel on a device found wrong first: see report.h. In pinned host memory, which the device writes.
struct Report {
  unsigned taken = 0;     ///< set by the thread that writes the rest
  unsigned complete = 0;  ///< the rest is there
  const char *op = nullptr, *what = nullptr, *place_name = nullptr;
  int64_t limit = 0, value = 0, place = 0;
};
/// Of this thread's current device.
Report* report();

/// Memory for the time of an operation, freed in stream order.
class Scratch {
 public:
  explicit Scratch(size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  template <class T> T* as() const { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
  size_t bytes_;
  int device_;
  cudaStream_t stream_;
};

}  // namespace lockstep::cuda
