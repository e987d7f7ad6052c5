// The CUDA backend: devices, stream-ordered memory, copies, streams and events.
#include "tensor/backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "tensor/conv_backend.h"
#include "tensor/cuda/capture.h"
#include "tensor/cuda/runtime.h"
#include "tensor/cuda/streams.h"
#include "tensor/memory.h"

namespace lockstep {

namespace cuda {
namespace {

std::string version(int v) { return str(v / 1000, ".", v % 1000 / 10); }

/// The number of devices, or the reason why there is none.
struct Found {
  int count = 0;
  std::string why;
};
const Found& found() {
  static const Found result = [] {
    Found f;
    const cudaError_t code = cudaGetDeviceCount(&f.count);
    if (code == cudaSuccess && f.count > 0) {
      f.count = std::min(f.count, max_devices);
      return f;
    }
    cudaGetLastError();
    f.count = 0;
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    f.why = code == cudaErrorNoDevice || code == cudaSuccess
                ? "the driver sees no device (nvidia-smi -L lists them; CUDA_VISIBLE_DEVICES may hide them)"
            : code == cudaErrorInsufficientDriver && driver == 0
                ? "no NVIDIA driver is installed (nvidia-smi would show it)"
            : code == cudaErrorInsufficientDriver
                ? str("the NVIDIA driver is for CUDA ", version(driver), " and this build needs ", version(runtime),
                      ": update the driver")
                : str(cudaGetErrorName(code), ": ", cudaGetErrorString(code));
    return f;
  }();
  return result;
}

int device_count() { return found().count; }
std::string why_none() { return found().why; }

std::string describe() {
  std::string text;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  text += str("runtime ", version(runtime), ", driver ", driver ? version(driver) : "none");
  for (const ConvBackend& library : conv_backends())
    if (library.device == Device::Type::cuda)
      for (const auto& [name, value] : library.facts()) text += str(", ", name, " ", value);
  text += "\n";
  if (device_count() == 0) return text + "no device: " + why_none() + "\n";
  for (int i = 0; i < device_count(); ++i) {
    cudaDeviceProp p{};
    check("device", cudaGetDeviceProperties(&p, i));
    text += str("cuda:", i, " ", p.name, ", compute capability ", p.major, ".", p.minor, ", ", p.multiProcessorCount,
                " multiprocessors, ", p.totalGlobalMem >> 20, " MiB",
                has_code_for(i) ? "" : str("; this build has no code for it (set -Dgpu_arch=", p.major, p.minor, ")"),
                "\n");
  }
  return text;
}

bool multiplies_bf16(int device) {
  cudaDeviceProp p{};
  check("device", cudaGetDeviceProperties(&p, device));
  return p.major >= 8;
}

// The device's memory pool. keep_memory() stops it from returning memory to the driver by itself, which would happen at
// every synchronisation and cost too much.
cudaMemPool_t pool_of(int device) {
  cudaMemPool_t pool = nullptr;
  check("memory", cudaDeviceGetDefaultMemPool(&pool, device));
  return pool;
}
void keep_memory(int device) {
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = uint64_t(1) << device;
  if (done.fetch_or(bit) & bit) [[likely]]
    return;
  uint64_t threshold = UINT64_MAX;
  check("memory", cudaMemPoolSetAttribute(pool_of(device), cudaMemPoolAttrReleaseThreshold, &threshold));
}

void* allocate(size_t bytes, int device) {
  select_device(device);
  keep_memory(device);
  if (void* captured = allocate_captured(bytes, device)) return captured;
  void* data = nullptr;
  cudaError_t code = cudaMallocAsync(&data, bytes, stream_of(device));
  if (code == cudaSuccess) [[likely]]
    return data;
  cudaGetLastError();
  if (code == cudaErrorMemoryAllocation) {  // pending frees and the pool's reserve may suffice
    cudaDeviceSynchronize();
    cudaMemPoolTrimTo(pool_of(device), 0);
    code = cudaMallocAsync(&data, bytes, stream_of(device));
    if (code == cudaSuccess) return data;
    cudaGetLastError();
  }
  if (code != cudaErrorMemoryAllocation) fail_cuda("memory", code);
  size_t available = 0, total = 0;
  cudaMemGetInfo(&available, &total);
  const Device at{Device::Type::cuda, int16_t(device)};
  fail_out_of_memory(str("[memory] could not allocate ", bytes, " bytes on ", at, ", which has ", available, " of ",
                         total, " bytes free"),
                     at);
}

void deallocate(void* data, size_t, int device, void* stream) noexcept {
  if (!deallocate_captured(data, device, stream)) free_in_order(data, device, stream);
}

size_t pool_attribute(int device, cudaMemPoolAttr what) {
  uint64_t value = 0;
  check("memory", cudaMemPoolGetAttribute(pool_of(device), what, &value));
  return size_t(value);
}
size_t memory_size(int device) {
  select_device(device);
  size_t available = 0, total = 0;
  check("memory", cudaMemGetInfo(&available, &total));
  return total;
}
size_t cached_bytes(int device) {
  return pool_attribute(device, cudaMemPoolAttrReservedMemCurrent) -
         pool_attribute(device, cudaMemPoolAttrUsedMemCurrent);
}
void release_cached(int device) {
  select_device(device);
  check("memory", cudaDeviceSynchronize());
  check("memory", cudaMemPoolTrimTo(pool_of(device), 0));
}

// Lets kernels and copies of `device` access the memory of `peer` directly, if the machine supports it: both peer's
// memory pool and what graphs have allocated on peer. Without direct access, copies go through the host's memory.
void let_reach(int device, int peer) {
  static std::array<std::atomic<uint64_t>, max_devices> done{};
  const uint64_t bit = uint64_t(1) << peer;
  if (done[size_t(device)].fetch_or(bit) & bit) [[likely]]
    return;
  int can = 0;
  check("copy", cudaDeviceCanAccessPeer(&can, device, peer));
  if (!can) return;
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice, device};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  check("copy", cudaMemPoolSetAccess(pool_of(peer), &access, 1));
  const OnDevice here(device);
  const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();  // perhaps NCCL has enabled it
  else check("copy", code);
}

// Copies between devices. The copy waits for earlier work on both devices' streams, and later work on both streams
// waits for the copy.
void copy_to_peer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  const auto pass = [](int before, int after) {  // later work of `after` waits for earlier work of `before`
    cudaEvent_t event = nullptr;
    select_device(before);
    check("copy", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    const cudaError_t recorded = cudaEventRecord(event, stream_of(before));
    select_device(after);
    const cudaError_t waits = recorded == cudaSuccess ? cudaStreamWaitEvent(stream_of(after), event, 0) : recorded;
    cudaEventDestroy(event);  // takes effect when the event is no longer needed
    check("copy", waits);
  };
  let_reach(to_device, from_device);
  let_reach(from_device, to_device);
  pass(from_device, to_device);
  check("copy", cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream_of(to_device)));
  pass(to_device, from_device);
}

void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes, bool wait) {
  const int device = from_device.is_cpu() ? to_device.index : from_device.index;
  select_device(device);
  const cudaStream_t stream = stream_of(device);
  if (!from_device.is_cpu() && !to_device.is_cpu() && from_device != to_device) {
    return copy_to_peer(to, to_device.index, from, from_device.index, bytes);
  }
  // Refuses to record a copy from or to host memory, because every replay of the graph would access that memory again.
  if (is_recording() && (from_device.is_cpu() || to_device.is_cpu())) check("copy", cudaErrorStreamCaptureUnsupported);
  const cudaMemcpyKind kind = from_device.is_cpu() ? cudaMemcpyHostToDevice
                              : to_device.is_cpu() ? cudaMemcpyDeviceToHost
                                                   : cudaMemcpyDeviceToDevice;
  check("copy", cudaMemcpyAsync(to, from, bytes, kind, stream));
  if (!wait || kind == cudaMemcpyDeviceToDevice) return;
  check("copy", cudaStreamSynchronize(stream));
  raise_report(device);
}

void synchronize(int device) {
  select_device(device);
  check("synchronize", cudaDeviceSynchronize());
  raise_report(device);
}

void* pin(size_t bytes) {
  void* data = nullptr;
  const cudaError_t code = cudaMallocHost(&data, bytes);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail_out_of_memory(str("[memory] could not pin ", bytes, " bytes of host memory"));
  }
  check("memory", code);
  return data;
}
void unpin(void* data) noexcept { cudaFreeHost(data); }

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

// Streams are reused and never destroyed, because memory allocated on a stream may be freed on it much later.
struct StreamPool {
  std::mutex mutex;
  std::vector<cudaStream_t> all, idle;
};
StreamPool& streams(int device, bool urgent) {
  static StreamPool* pools = new StreamPool[max_devices * 2];
  return pools[device * 2 + urgent];
}

void* new_stream(int device, bool urgent) {
  select_device(device);
  StreamPool& pool = streams(device, urgent);
  {
    const std::lock_guard lock(pool.mutex);
    if (!pool.idle.empty()) {
      const cudaStream_t stream = pool.idle.back();
      pool.idle.pop_back();
      return stream;
    }
  }
  int least = 0, greatest = 0;
  check("stream", cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  check("stream", cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
  const std::lock_guard lock(pool.mutex);
  pool.all.push_back(stream);
  return stream;
}
void free_stream(void* stream, int device) noexcept {
  cudaStreamSynchronize(as_stream(stream));
  for (const bool urgent : {false, true}) {
    StreamPool& pool = streams(device, urgent);
    const std::lock_guard lock(pool.mutex);
    if (std::find(pool.all.begin(), pool.all.end(), stream) != pool.all.end()) pool.idle.push_back(as_stream(stream));
  }
}
void* current(int device) { return stream_of(device); }
void set_current(int device, void* stream) { set_stream(device, as_stream(stream)); }
void synchronize_stream(void* stream, int device) {
  select_device(device);
  check("stream", cudaStreamSynchronize(as_stream(stream)));
  raise_report(device);
}
void* new_event(int device, bool timed) {
  select_device(device);
  cudaEvent_t event = nullptr;
  check("event", cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  return event;
}
void free_event(void* event, int) noexcept { cudaEventDestroy(as_event(event)); }
void record(void* event, void* stream, int device) {
  select_device(device);
  check("event", cudaEventRecord(as_event(event), as_stream(stream)));
}
void wait(void* stream, void* event, int device) {
  select_device(device);
  check("event", cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
}
bool done(void* event, int device) {
  select_device(device);
  const cudaError_t code = cudaEventQuery(as_event(event));
  if (code != cudaErrorNotReady) check("event", code);
  return code == cudaSuccess;
}
void synchronize_event(void* event, int device) {
  select_device(device);
  check("event", cudaEventSynchronize(as_event(event)));
  raise_report(device);
}
double milliseconds(void* start, void* end, int device) {
  select_device(device);
  float ms = 0;
  check("event", cudaEventElapsedTime(&ms, as_event(start), as_event(end)));
  return ms;
}

}  // namespace
}  // namespace cuda

extern const Backend cuda_backend;  // used by device.cpp
const Backend cuda_backend{
    .device_count = cuda::device_count,
    .why_none = cuda::why_none,
    .describe = cuda::describe,
    .multiplies_bf16 = cuda::multiplies_bf16,
    .select = cuda::select_device,
    .allocate = cuda::allocate,
    .deallocate = cuda::deallocate,
    .keep_for_graphs = cuda::keep_for_graphs,
    .memory_size = cuda::memory_size,
    .cached_bytes = cuda::cached_bytes,
    .release_cached = cuda::release_cached,
    .copy_bytes = cuda::copy_bytes,
    .synchronize = cuda::synchronize,
    .distrust = cuda::distrust,
    .pin = cuda::pin,
    .unpin = cuda::unpin,
    .new_stream = cuda::new_stream,
    .free_stream = cuda::free_stream,
    .current_stream = cuda::current,
    .set_current_stream = cuda::set_current,
    .synchronize_stream = cuda::synchronize_stream,
    .new_event = cuda::new_event,
    .free_event = cuda::free_event,
    .record = cuda::record,
    .wait = cuda::wait,
    .done = cuda::done,
    .synchronize_event = cuda::synchronize_event,
    .milliseconds = cuda::milliseconds,
    .begin_capture = cuda::begin_capture,
    .end_capture = cuda::end_capture,
    .abandon_capture = cuda::abandon_capture,
    .launch_graph = cuda::launch_graph,
    .set_keys = cuda::set_keys,
    .free_graph = cuda::free_graph,
    .hold_for_graphs = cuda::hold_for_graphs,
};

}  // namespace lockstep
