#pragma once
// The CUDA backend's view of the CUDA runtime: errors, the current device and stream, scratch memory. Internal.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "tensor/tensor.h"

namespace lockstep::cuda {

/// Throws "[op] cuda: ..." with the name and text of the code, and advice if there is any.
[[noreturn]] void fail_cuda(const char* op, cudaError_t code);
/// Throws unless the code is cudaSuccess.
inline void check(const char* op, cudaError_t code) {
  if (code != cudaSuccess) [[unlikely]]
    fail_cuda(op, code);
}
/// Throws an error that describes the launch.
[[noreturn]] void fail_launch(const char* op, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                              cudaError_t code);

/// This thread's current device.
int current_device();
/// This thread's current stream on its current device.
cudaStream_t current_stream();

/// Properties of a device that determine the shape of launches; read once per device.
struct DeviceLimits {
  int multiprocessors = 1;
  int shared_per_block = 48 * 1024;  ///< the most shared memory of a block, with opt-in
  int major = 0, minor = 0;          ///< compute capability
};
/// The limits of this thread's current device.
const DeviceLimits& limits();
/// The most blocks that a kernel that strides over its elements should start.
int64_t max_blocks();

/// The first index or label out of range that a kernel found (report.h). In pinned host memory; the device writes it.
struct Report {
  unsigned taken = 0;     ///< set by the thread that fills in the rest
  unsigned complete = 0;  ///< set once the rest is filled in
  const char *op = nullptr, *what = nullptr, *place_name = nullptr;
  int64_t limit = 0, value = 0, place = 0;
};
/// The report of this thread's current device.
Report* report();

/// The largest number that counters() takes.
inline constexpr int64_t max_counters = 1024;
/// Returns `count` counters, all 0, with which the blocks of a kernel find out which of them ends last. The kernel
/// leaves them at 0. They belong to the current stream (while a graph is recorded: to the graph and the stream), so no
/// other kernel uses them at the same time.
unsigned* counters(const char* op, int64_t count);

/// Device memory for the duration of an operation, freed in stream order.
class Scratch {
 public:
  explicit Scratch(size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  /// The memory; nullptr if the size is 0.
  template <class T> T* as() const { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
  size_t bytes_;
  int device_;
  cudaStream_t stream_;
};

}  // namespace lockstep::cuda
