// Errors, the current device and stream, and the properties of devices.
#include "tensor/cuda/runtime.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <new>

#include "tensor/backend.h"
#include "tensor/cuda/streams.h"

namespace lockstep::cuda {
namespace {

thread_local int selected_device = -1;
thread_local std::array<cudaStream_t, most_devices> selected_stream{};  // nullptr: the device's default stream

struct DeviceState {
  std::once_flag once;
  DeviceLimits limits;
  cudaStream_t stream = nullptr;  // where work goes that no StreamScope sends elsewhere
  Report* report = nullptr;
};
DeviceState& state_of(int device) {
  static std::array<DeviceState, most_devices>& states = *new std::array<DeviceState, most_devices>;  // outlives static tensors
  DeviceState& state = states[size_t(device)];
  std::call_once(state.once, [&] {
    cudaDeviceProp properties{};
    check("device", cudaGetDeviceProperties(&properties, device));
    state.limits = {properties.multiProcessorCount, int(properties.sharedMemPerBlockOptin), properties.major, properties.minor};
    check("device", cudaStreamCreateWithFlags(&state.stream, cudaStreamNonBlocking));
    void* pinned = nullptr;
    check("device", cudaMallocHost(&pinned, sizeof(Report)));
    state.report = new (pinned) Report;
  });
  return state;
}

}  // namespace

void fail_cuda(const char* op, cudaError_t code) {
  fail(str("[", op, "] cuda: ", cudaGetErrorName(code), ": ", cudaGetErrorString(code)));
}

void fail_launch(const char* op, dim3 grid, dim3 block, size_t shared, cudaStream_t stream, cudaError_t code) {
  fail(str("[", op, "] could not start a kernel of ", grid.x, "x", grid.y, "x", grid.z, " blocks of ", block.x, "x", block.y, "x", block.z, " threads with ",
           shared, " bytes of shared memory on cuda:", current_device(), ", stream ", static_cast<const void*>(stream), ": ", cudaGetErrorName(code), ": ",
           cudaGetErrorString(code)));
}

void select_device(int device) {
  if (device == selected_device) [[likely]] return;
  check("device", cudaSetDevice(device));
  selected_device = device;
  state_of(device);
}

int current_device() { return selected_device < 0 ? 0 : selected_device; }

cudaStream_t stream_of(int device) {
  const cudaStream_t chosen = selected_stream[size_t(device)];
  return chosen ? chosen : state_of(device).stream;
}
cudaStream_t current_stream() { return stream_of(current_device()); }
void set_stream(int device, cudaStream_t stream) { selected_stream[size_t(device)] = stream; }

const DeviceLimits& limits() { return state_of(current_device()).limits; }
Report* report() { return state_of(current_device()).report; }
void raise_report(int device) {
  Report& found = *state_of(device).report;
  if (!std::atomic_ref(found.complete).exchange(0, std::memory_order_acquire)) [[likely]] return;
  const Report first = found;
  std::atomic_ref(found.taken).store(0, std::memory_order_release);
  fail(str("[", first.op, "] expected ", first.what, " in [0, ", first.limit, "), got ", first.value, " ", first.place_name, " ", first.place));
}
int64_t most_blocks() { return int64_t(limits().multiprocessors) * 16; }

Scratch::Scratch(size_t bytes) : bytes_(bytes), device_(current_device()), stream_(current_stream()) {
  if (bytes > 0) data_ = backend(Device::Type::cuda)->allocate(bytes, device_);
}
Scratch::~Scratch() {
  if (data_) backend(Device::Type::cuda)->deallocate(data_, bytes_, device_, stream_);
}

}  // namespace lockstep::cuda
