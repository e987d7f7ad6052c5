// The functions of the CUDA runtime API for the fake devices, behind NVIDIA's own header. Arguments are checked as by
// the real runtime. Streams and events are here too; graphs are in graph.cpp.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/cudasim/block.h"
#include "tests/cudasim/runtime.h"
#include "tests/cudasim/tma.h"

namespace {

using namespace fake;

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t result(cudaError_t code) {
  if (code != cudaSuccess && code != cudaErrorNotReady) last_error = code;
  return code;
}
/// First line of functions that put work on a stream.
#define STEP_OR_RETURN() \
  if (const cudaError_t stuck = step(); stuck != cudaSuccess) return result(stuck)

bool exists(int device) { return device >= 0 && device < settings().devices; }

// Pinned host memory. Other host memory is copied before an asynchronous copy returns.
SpinLock pinned_lock;
std::map<const char*, size_t>& pinned() {
  static auto& all = *new std::map<const char*, size_t>;
  return all;
}
constexpr size_t before_pinned = 64;  // unaddressable bytes in front, so that free() does not recognise the pointer
bool is_pinned(const void* p) { return pinned_part(p, 1) == Pinned::all; }
/// True if host memory may be copied as a whole: not if it starts in pinned memory and ends outside.
bool is_one_kind(const void* host, size_t bytes) { return pinned_part(host, bytes) != Pinned::part; }

// Who may access what, as [device][peer]: memory of cudaMalloc(), and memory of the peer's pool.
std::atomic<bool> may_reach[max_devices][max_devices], may_reach_pool[max_devices][max_devices];
bool can_reach(int device, int peer) { return exists(device) && exists(peer) && device != peer && settings().peers; }

double now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The error of a host function that waits, while the stream captures.
cudaError_t check_not_capturing(cudaStream_t stream) {
  CUstream_st* s = find_stream(stream);
  if (!s) return cudaErrorInvalidResourceHandle;
  if (!s->capture) return cudaSuccess;
  if (capturing) capturing->spoiled = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t allocate(void** p, size_t bytes, bool pooled) {
  *p = nullptr;
  if (const cudaError_t code = allocation_failure.next(); code != cudaSuccess) return code;
  if (bytes == 0) return cudaSuccess;
  const int device = current_device();
  *p = reserve_memory(bytes, device, pooled);
  if (!*p) {
    finish_device(device);  // pending frees may return memory
    *p = reserve_memory(bytes, device, pooled);
  }
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (!find_stream(stream)) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  const bool to_device = device_of(to) >= 0, from_device = device_of(from) >= 0;
  if (kind == cudaMemcpyDefault)
    kind = to_device     ? from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice
           : from_device ? cudaMemcpyDeviceToHost
                         : cudaMemcpyHostToHost;
  if (to_device != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice)) return cudaErrorInvalidValue;
  if (from_device != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)) return cudaErrorInvalidValue;
  if ((to_device && !is_inside(to, bytes)) || (from_device && !is_inside(from, bytes))) return cudaErrorInvalidValue;
  if ((!to_device && !is_one_kind(to, bytes)) || (!from_device && !is_one_kind(from, bytes)))
    return cudaErrorInvalidValue;
  note_launch("memcpy");
  // Devices without access to each other's memory copy through the host's.
  const bool direct = to_device && from_device && (reaches(device_of(to), from) || reaches(device_of(from), to));
  if (from_device && !direct) note_copy_to_host(bytes);
  CUstream_st* s = find_stream(stream);
  if (!from_device && !is_pinned(from) && !s->capture) {
    enqueue(stream, [=, staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                                     static_cast<const char*>(from) + bytes)] {
      std::memcpy(to, staged->data(), bytes);
    });
  } else {
    enqueue(stream, [=] { std::memmove(to, from, bytes); });
  }
  if (to_device || is_pinned(to) || s->capture) return cudaSuccess;
  note_wait();
  finish(stream);
  return cudaSuccess;
}

}  // namespace

namespace fake {
Pinned pinned_part(const void* p, size_t bytes) {
  const std::lock_guard lock(pinned_lock);
  const auto* begin = static_cast<const char*>(p);
  const auto next = pinned().upper_bound(begin);
  if (next == pinned().begin()) return Pinned::none;
  const auto& [start, size] = *std::prev(next);
  return begin >= start + size ? Pinned::none : begin + bytes > start + size ? Pinned::part : Pinned::all;
}
bool reaches(int device, const void* p) {
  const int owner = device_of(p);
  return device >= 0 && owner >= 0 &&
         (owner == device || (is_pooled(p) ? may_reach_pool[device][owner] : may_reach[device][owner]));
}
}  // namespace fake

extern "C" {

// --- devices and errors ---

cudaError_t cudaGetDeviceCount(int* count) {
  *count = settings().driver == cudaSuccess ? settings().devices : 0;
  return result(settings().driver);
}
cudaError_t cudaSetDevice(int device) {
  if (settings().driver != cudaSuccess) return result(settings().driver);
  if (!exists(device)) return result(cudaErrorInvalidDevice);
  select_device(device);
  return result(sticky());
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  const cudaError_t code = last_error;
  last_error = cudaSuccess;
  return sticky() != cudaSuccess ? sticky() : code;
}
cudaError_t cudaPeekAtLastError() { return sticky() != cudaSuccess ? sticky() : last_error; }
#define NAMES(X)                                                                                                   \
  X(cudaSuccess, "no error")                                                                                       \
  X(cudaErrorInvalidValue, "invalid argument")                                                                     \
  X(cudaErrorMemoryAllocation, "out of memory")                                                                    \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                               \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                                                              \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                                     \
  X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")                   \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                                       \
  X(cudaErrorNotReady, "device not ready")                                                                         \
  X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                                           \
  X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                                      \
  X(cudaErrorLaunchTimeout, "the launch timed out and was terminated")                                             \
  X(cudaErrorLaunchFailure, "unspecified launch failure")                                                          \
  X(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                                              \
  X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device")                   \
  X(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices")                      \
  X(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")                                           \
  X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")                         \
  X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")                  \
  X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                                          \
  X(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread") \
  X(cudaErrorIllegalState, "the operation cannot be performed in the present state")
const char* cudaGetErrorName(cudaError_t code) {
#define NAME(name, text) \
  if (code == name) return #name;
  NAMES(NAME)
#undef NAME
  return "cudaError";
}
const char* cudaGetErrorString(cudaError_t code) {
#define TEXT(name, text) \
  if (code == name) return text;
  NAMES(TEXT)
#undef TEXT
  return "an error that the fake runtime has no text for";
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = settings().driver_version;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = driver_function(symbol);
  if (found) *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (!exists(device)) return result(cudaErrorInvalidDevice);
  const int capability = settings().capability;
  *p = {};
  std::snprintf(p->name, sizeof p->name, "simulated");
  p->totalGlobalMem = settings().memory;
  p->multiProcessorCount = 4;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->sharedMemPerBlock = simt::shared_unasked;
  p->sharedMemPerBlockOptin = simt::max_shared();
  p->regsPerBlock = 65536;
  p->major = capability / 10;
  p->minor = capability % 10;
  p->l2CacheSize = 50 << 20;
  p->unifiedAddressing = p->canMapHostMemory = p->concurrentKernels = p->memoryPoolsSupported = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  STEP_OR_RETURN();
  if (capturing) return result(check_not_capturing(capturing));
  note_wait();
  finish_device(current_device());
  return result(sticky());
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (!exists(device)) return result(cudaErrorInvalidDevice);
  return result(std::snprintf(id, size_t(length), "0000:%02x:00.0", device + 1) < length ? cudaSuccess
                                                                                         : cudaErrorInvalidValue);
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!exists(device) || !exists(peer)) return result(cudaErrorInvalidDevice);
  *can = can_reach(device, peer);
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (!exists(peer) || peer == current_device()) return result(cudaErrorInvalidDevice);
  if (!can_reach(current_device(), peer)) return result(cudaErrorPeerAccessUnsupported);
  const bool had = may_reach[current_device()][peer].exchange(true);
  return result(had ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  if (!kernel) return result(cudaErrorInvalidDeviceFunction);
  if (settings().capability < settings().code) return result(cudaErrorNoKernelImageForDevice);
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = settings().code;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const bool good = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value >= 0 &&
                    simt::allow_shared(kernel, current_device(), size_t(value));
  return result(good ? cudaSuccess : cudaErrorInvalidValue);
}

// --- memory ---

cudaError_t cudaMalloc(void** p, size_t bytes) {
  STEP_OR_RETURN();
  const cudaError_t code = allocate(p, bytes, false);
  if (*p) begin_memory(*p);
  return result(code);
}
cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  STEP_OR_RETURN();
  if (!retire_memory(p)) return result(cudaErrorInvalidValue);
  finish_device(device_of(p));
  end_memory(p);
  return result(sticky());
}
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t stream) {
  STEP_OR_RETURN();
  // graph memory nodes are not simulated
  if (const cudaError_t code = check_not_capturing(stream); code != cudaSuccess) return result(code);
  const cudaError_t code = allocate(p, bytes, true);
  if (*p) enqueue(stream, [memory = *p] { begin_memory(memory); });
  return result(code);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  if (!p) return cudaSuccess;
  STEP_OR_RETURN();
  if (const cudaError_t code = check_not_capturing(stream); code != cudaSuccess) return result(code);
  if (!retire_memory(p)) return result(cudaErrorInvalidValue);
  enqueue(stream, [p] { end_memory(p); });
  return cudaSuccess;
}
static int default_pools[max_devices];
static int device_of_pool(cudaMemPool_t pool) { return int(reinterpret_cast<int*>(pool) - default_pools); }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (!exists(device)) return result(cudaErrorInvalidDevice);
  *pool = reinterpret_cast<cudaMemPool_t>(&default_pools[device]);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* list, size_t count) {
  const int owner = device_of_pool(pool);
  for (size_t i = 0; i < count; ++i) {
    const int device = list[i].location.id;
    if (list[i].location.type != cudaMemLocationTypeDevice) return result(cudaErrorInvalidValue);
    if (!can_reach(device, owner)) return result(cudaErrorInvalidDevice);
    may_reach_pool[device][owner] = list[i].flags == cudaMemAccessFlagsProtReadWrite;
  }
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  const Usage u = usage(device_of_pool(pool));
  if (attribute != cudaMemPoolAttrReservedMemCurrent && attribute != cudaMemPoolAttrUsedMemCurrent)
    return result(cudaErrorInvalidValue);
  *static_cast<uint64_t*>(value) = u.pool_used + (attribute == cudaMemPoolAttrReservedMemCurrent ? u.pool_cached : 0);
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
  trim_pool(device_of_pool(pool));
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *total = settings().memory;
  *available = *total - usage(current_device()).used;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  *p = nullptr;
  STEP_OR_RETURN();
  if (const cudaError_t code = allocation_failure.next(); code != cudaSuccess) return result(code);
  char* full = static_cast<char*>(std::malloc(before_pinned + bytes));
  if (!full) return result(cudaErrorMemoryAllocation);
  *p = full + before_pinned;
  simt::poison(full, before_pinned);
  std::memset(*p, 0xff, bytes);
  const std::lock_guard lock(pinned_lock);
  pinned()[static_cast<char*>(*p)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  if (!p) return cudaSuccess;
  for (int d = 0; d < settings().devices; ++d) finish_device(d);  // copies that still use it
  {
    const std::lock_guard lock(pinned_lock);
    if (pinned().erase(static_cast<char*>(p)) == 0) return result(cudaErrorInvalidValue);
  }
  char* full = static_cast<char*>(p) - before_pinned;
  simt::unpoison(full, before_pinned);
  std::free(full);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  STEP_OR_RETURN();
  return result(copy(to, from, bytes, kind, stream));
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  STEP_OR_RETURN();
  const cudaError_t code = copy(to, from, bytes, kind, nullptr);
  note_wait();
  finish(nullptr);
  return result(code != cudaSuccess ? code : sticky());
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  STEP_OR_RETURN();
  if (device_of(to) != to_device || device_of(from) != from_device) return result(cudaErrorInvalidValue);
  return result(copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  STEP_OR_RETURN();
  if (!find_stream(stream)) return result(cudaErrorInvalidResourceHandle);
  if (bytes > 0 && !is_inside(p, bytes)) return result(cudaErrorInvalidValue);
  note_launch("memset");
  enqueue(stream, [=] { set_memory(p, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* p, int value, size_t bytes) { return cudaMemsetAsync(p, value, bytes, nullptr); }

// --- streams and events ---

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  STEP_OR_RETURN();
  if (flags != cudaStreamNonBlocking && flags != cudaStreamDefault) return result(cudaErrorInvalidValue);
  *stream = make_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!stream || !find_stream(stream)) return result(cudaErrorInvalidResourceHandle);
  destroy_stream(stream);
  return result(sticky());
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  STEP_OR_RETURN();
  if (const cudaError_t code = check_not_capturing(stream); code != cudaSuccess) return result(code);
  note_wait();
  finish(stream);
  return result(sticky());
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  STEP_OR_RETURN();
  if (const cudaError_t code = check_not_capturing(stream); code != cudaSuccess) return result(code);
  CUstream_st* s = find_stream(stream);
  poll(s);
  if (!is_idle(s)) return result(cudaErrorNotReady);
  simt::acquire(&s->progress);
  return result(sticky());
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  STEP_OR_RETURN();
  if (flags & ~unsigned(cudaEventDisableTiming | cudaEventBlockingSync)) return result(cudaErrorInvalidValue);
  *event = new CUevent_st;
  (*event)->timed = !(flags & cudaEventDisableTiming);
  (*event)->device = current_device();
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!event || !event->alive) return result(cudaErrorInvalidResourceHandle);
  event->alive = false;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  STEP_OR_RETURN();
  CUstream_st* s = find_stream(stream);
  if (!s || !event || !event->alive || event->device != s->device) return result(cudaErrorInvalidResourceHandle);
  const auto mark = std::make_shared<Mark>();
  event->stream = s;
  event->mark = mark;
  event->capture = s->capture;
  enqueue(stream, [mark] {
    mark->milliseconds = now();
    simt::release(&mark->order);
    mark->passed = true;
  });
  event->after = s->after;  // includes the record itself
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  STEP_OR_RETURN();
  CUstream_st* s = find_stream(stream);
  if (!s || !event || !event->alive || flags != 0) return result(cudaErrorInvalidResourceHandle);
  if (!event->mark) return cudaSuccess;  // never recorded
  if (event->capture) {                  // the waiting stream joins the capture
    if (!event->capture->open || (s->capture && s->capture != event->capture))
      return result(cudaErrorStreamCaptureIsolation);
    if (!s->capture) s->joined = true;
    s->capture = event->capture;
    s->after.insert(s->after.end(), event->after.begin(), event->after.end());
    return cudaSuccess;
  }
  if (s->capture) return result(cudaErrorStreamCaptureIsolation);
  const auto mark = event->mark;
  enqueue(
      stream, [mark] { simt::acquire(&mark->order); }, [mark] { return mark->passed.load(); });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  STEP_OR_RETURN();
  if (!event || !event->alive) return result(cudaErrorInvalidResourceHandle);
  if (event->mark && event->capture) return result(cudaErrorCapturedEvent);
  note_wait();
  if (event->mark) finish_mark(event->stream, event->mark);
  return result(sticky());
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  STEP_OR_RETURN();
  if (!event || !event->alive) return result(cudaErrorInvalidResourceHandle);
  if (!event->mark) return cudaSuccess;
  if (event->capture) return result(cudaErrorCapturedEvent);
  poll(event->stream);
  if (!event->mark->passed) return result(sticky() != cudaSuccess ? sticky() : cudaErrorNotReady);
  simt::acquire(&event->mark->order);
  return result(sticky());
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!start || !end || !start->alive || !end->alive || !start->timed || !end->timed || !start->mark || !end->mark)
    return result(cudaErrorInvalidResourceHandle);
  if (!start->mark->passed || !end->mark->passed) return result(cudaErrorNotReady);
  *milliseconds = float(end->mark->milliseconds - start->mark->milliseconds);
  return cudaSuccess;
}

}  // extern "C"
