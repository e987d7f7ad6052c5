// Errors, the current device and stream, and the properties of devices.
#include "tensor/cuda/runtime.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>

#include "tensor/backend.h"
#include "tensor/cuda/capture.h"
#include "tensor/cuda/streams.h"
#include "tensor/graph.h"

namespace lockstep::on_cuda {
const void* some_kernel();  // unscale.cu
}

namespace lockstep::cuda {
namespace {

thread_local int selected_device = -1;
thread_local std::array<cudaStream_t, max_devices> selected_stream{};  // nullptr: the device's default stream

struct DeviceState {
  std::once_flag once;
  DeviceLimits limits;
  cudaStream_t stream = nullptr;  // used unless a StreamScope selects another
  Report* report = nullptr;
  std::mutex mutex;
  std::atomic<bool> distrusted{false};
  std::string why;  // guarded by mutex
};
DeviceState& state_of(int device) {
  static std::array<DeviceState, max_devices>& states =
      *new std::array<DeviceState, max_devices>;  // leaked: outlives static tensors
  DeviceState& state = states[size_t(device)];
  std::call_once(state.once, [&] {
    cudaDeviceProp properties{};
    check("device", cudaGetDeviceProperties(&properties, device));
    state.limits = {properties.multiProcessorCount, int(properties.sharedMemPerBlockOptin), properties.major,
                    properties.minor};
    const int version = properties.major * 10 + properties.minor;
    LOCKSTEP_CHECK(has_code_for(device), "[device] cuda:", device, " (", properties.name, ") has compute capability ",
                   properties.major, ".", properties.minor,
                   ", for which this build has no code: build it with -Dgpu_arch=", version,
                   ", or use another device (`lockstep env` lists them)");
    const OnDevice here(device);
    check("device", cudaStreamCreateWithFlags(&state.stream, cudaStreamNonBlocking));
    void* pinned = nullptr;
    check("device", cudaMallocHost(&pinned, sizeof(Report)));
    state.report = new (pinned) Report;
  });
  return state;
}

/// True for errors after which every CUDA call of this process fails.
bool is_sticky(cudaError_t code) {
  constexpr cudaError_t codes[] = {cudaErrorIllegalAddress,
                                   cudaErrorLaunchTimeout,
                                   cudaErrorHardwareStackError,
                                   cudaErrorIllegalInstruction,
                                   cudaErrorMisalignedAddress,
                                   cudaErrorInvalidAddressSpace,
                                   cudaErrorInvalidPc,
                                   cudaErrorLaunchFailure,
                                   cudaErrorECCUncorrectable,
                                   cudaErrorNvlinkUncorrectable,
                                   cudaErrorAssert,
                                   cudaErrorMpsClientTerminated};
  return std::find(std::begin(codes), std::end(codes), code) != std::end(codes);
}

/// Throws an Error with the name and text of the code, and with what the user can do about it.
[[noreturn]] void fail_with(const std::string& where, cudaError_t code) {
  const std::string text = str(where, cudaGetErrorName(code), ": ", cudaGetErrorString(code));
  cudaGetLastError();
  if (code == cudaErrorStreamCaptureUnsupported || code == cudaErrorStreamCaptureInvalidated ||
      code == cudaErrorStreamCaptureImplicit) {
    fail(str(text,
             " (during graph capture the host cannot read results, copy to the host or synchronise; do that before or "
             "after the capture)"));
  }
  if (!is_sticky(code)) fail(str(text, "; check the device with nvidia-smi and `lockstep env`"));
  static std::mutex mutex;
  static std::string& first = *new std::string;
  const std::lock_guard lock(mutex);
  const bool again = !first.empty();
  if (!again) first = text;
  fail(str(text,
           ". An earlier kernel has failed, so this process can no longer use its devices: restart it from its last "
           "checkpoint. ",
           again ? str("The first error was: ", first) : "With CUDA_LAUNCH_BLOCKING=1 the error names the operation"));
}

}  // namespace

void fail_cuda(const char* op, cudaError_t code) { fail_with(str("[", op, "] cuda: "), code); }

void fail_launch(const char* op, dim3 grid, dim3 block, size_t shared, cudaStream_t stream, cudaError_t code) {
  fail_with(str("[", op, "] could not start a kernel of ", grid.x, "x", grid.y, "x", grid.z, " blocks of ", block.x,
                "x", block.y, "x", block.z, " threads with ", shared, " bytes of shared memory on cuda:",
                current_device(), ", stream ", static_cast<const void*>(stream), ": "),
            code);
}

void select_device(int device) {
  if (device == selected_device) [[likely]]
    return;
  Graph::check_recording({Device::Type::cuda, int16_t(device)});
  check("device", cudaSetDevice(device));
  selected_device = -1;  // unless the device turns out to be usable
  state_of(device);
  selected_device = device;
}

bool has_code_for(int device) {
  const OnDevice here(device);
  cudaFuncAttributes attributes{};
  const cudaError_t code = cudaFuncGetAttributes(&attributes, on_cuda::some_kernel());
  if (code != cudaSuccess) cudaGetLastError();
  return code != cudaErrorNoKernelImageForDevice && code != cudaErrorInvalidDeviceFunction;
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
void distrust(int device, const char* why) {
  DeviceState& state = state_of(device);
  const std::lock_guard lock(state.mutex);
  state.why = why ? why : "";
  state.distrusted = why != nullptr;
}
void raise_report(int device) {
  DeviceState& state = state_of(device);
  if (state.distrusted) [[unlikely]] {
    const std::lock_guard lock(state.mutex);
    if (!state.why.empty()) fail(state.why);
  }
  Report& found = *state.report;
  if (!std::atomic_ref(found.complete).exchange(0, std::memory_order_acquire)) [[likely]]
    return;
  const Report first = found;
  std::atomic_ref(found.taken).store(0, std::memory_order_release);
  fail(str("[", first.op, "] expected ", first.what, " in [0, ", first.limit, "), got ", first.value, " ",
           first.place_name, " ", first.place, "; correct the ", first.what));
}
int64_t max_blocks() { return int64_t(limits().multiprocessors) * 16; }

unsigned* counters(const char* op, int64_t count) {
  LOCKSTEP_CHECK(count <= max_counters, "[", op, "] expected at most ", max_counters, " counters, got ", count,
                 "; this is a bug in Lockstep, please report it");
  constexpr size_t bytes = max_counters * sizeof(unsigned);
  const cudaStream_t stream = current_stream();
  if (void* const recorded = recorded_zeros(bytes, stream)) return static_cast<unsigned*>(recorded);
  static std::mutex& mutex = *new std::mutex;
  static auto& of_streams = *new std::unordered_map<cudaStream_t, void*>;  // streams live as long as the process
  const std::lock_guard lock(mutex);
  void*& mine = of_streams[stream];
  if (!mine) {
    void* const data = backend(Device::Type::cuda)->allocate(bytes, current_device());
    check(op, cudaMemsetAsync(data, 0, bytes, stream));
    mine = data;
  }
  return static_cast<unsigned*>(mine);
}

Scratch::Scratch(size_t bytes) : bytes_(bytes), device_(current_device()), stream_(current_stream()) {
  if (bytes > 0) data_ = backend(Device::Type::cuda)->allocate(bytes, device_);
}
Scratch::~Scratch() {
  if (data_) backend(Device::Type::cuda)->deallocate(data_, bytes_, device_, stream_);
}

}  // namespace lockstep::cuda
