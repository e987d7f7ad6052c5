#pragma once
// Backend: all that a device other than the CPU provides besides its kernels: memory, copies, streams, events and
// graphs. One struct of function pointers, filled in tensor/cuda/backend.cpp; a build without CUDA has none.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tensor/device.h"
#include "tensor/op.h"

namespace lockstep {

struct RecordedKey;
class Tensor;
/// Maximum number of random keys that one call of set_keys() writes: the keys are passed as a kernel's arguments.
inline constexpr int keys_at_once = 128;

/// Streams and events are the device's own handles. Every function that is not noexcept may throw an Error that names
/// the failed call. `device` is an index among the devices of this type.
struct Backend {
  KernelRecorder recorder;              ///< called instead of kernels; nullptr: kernels run
  int (*device_count)();                ///< number of usable devices
  std::string (*why_none)();            ///< tells the user why device_count() is 0
  std::string (*describe)();            ///< several lines for `lockstep env`
  bool (*multiplies_bf16)(int device);  ///< true if the device has tensor cores for bf16
  void (*select)(int device);           ///< makes this device the target of what this thread does next
  /// Allocates memory in the order of the thread's current stream, which may use the memory at once. Code that uses the
  /// memory on another stream must keep it until the first stream has waited for an event of the other stream.
  void* (*allocate)(size_t bytes, int device);
  /// Frees memory that allocate() returned. `stream`: the stream that was current at that time.
  void (*deallocate)(void* data, size_t bytes, int device, void* stream) noexcept;
  /// Called in place of deallocate() for memory that graphs may use: those whose recording began after the allocation.
  /// Returns true if there is one; the memory then lives as long as these graphs, and must not be deallocated. false:
  /// nothing was done, call deallocate(). born: the value of Graph::recordings() at the allocation.
  bool (*keep_for_graphs)(void* data, int device, void* stream, uint32_t born) noexcept;
  size_t (*memory_size)(int device);   ///< bytes of the device's memory; 0: unknown
  size_t (*cached_bytes)(int device);  ///< bytes in the pool that no storage uses
  void (*release_cached)(int device);  ///< returns the pool's unused bytes to the driver
  /// Copies bytes between contiguous memory, at least one side on this type of device, in the order of the current
  /// stream. With `wait`, host memory may be reused on return; otherwise when the copy is done.
  void (*copy_bytes)(void* to, Device to_device, const void* from, Device from_device, size_t bytes, bool wait);
  void (*synchronize)(int device);                ///< waits for all streams; throws the errors of their work
  void (*distrust)(int device, const char* why);  ///< see stream.h; why = nullptr: trusts the device again

  void* (*pin)(size_t bytes);                              ///< page-locked host memory, which copies need not stage
  void (*unpin)(void* data) noexcept;                      ///< frees memory of pin()
  void* (*new_stream)(int device, bool urgent);            ///< urgent: true for a stream of higher priority
  void (*free_stream)(void* stream, int device) noexcept;  ///< frees a stream of new_stream()
  void* (*current_stream)(int device);                     ///< the calling thread's current stream
  /// Makes `stream` the calling thread's current stream; nullptr: the default stream.
  void (*set_current_stream)(int device, void* stream);
  /// Waits for the stream's work; throws the errors of that work.
  void (*synchronize_stream)(void* stream, int device);
  void* (*new_event)(int device, bool timed);                  ///< timed: true if milliseconds() will read it
  void (*free_event)(void* event, int device) noexcept;        ///< frees an event of new_event()
  void (*record)(void* event, void* stream, int device);       ///< marks the point that the stream has reached
  void (*wait)(void* stream, void* event, int device);         ///< later work on the stream runs after the event
  bool (*done)(void* event, int device);                       ///< true if the event has been reached
  void (*synchronize_event)(void* event, int device);          ///< blocks the host until the event is reached
  double (*milliseconds)(void* start, void* end, int device);  ///< between two timed events that are done

  // Graphs (see graph.h). Between begin and end, work that this thread puts on its current stream is recorded, not run.
  void (*begin_capture)(int device);              ///< begins recording
  void* (*end_capture)(int device);               ///< ends recording; returns the graph
  void (*abandon_capture)(int device) noexcept;   ///< ends a recording that failed
  void (*launch_graph)(void* graph, int device);  ///< runs the graph on this thread's current stream
  /// Writes up to keys_at_once random keys into device memory, in the order of this thread's current stream.
  void (*set_keys)(RecordedKey* to, const RecordedKey* keys, int count, int device);
  void (*free_graph)(void* graph, int device) noexcept;  ///< frees the graph, and the memory kept for it

  /// Does the same as keep_for_graphs() for memory that `owner` holds: graphs that may use it keep `owner` alive.
  void (*hold_for_graphs)(const std::shared_ptr<void>& owner, int device, uint32_t born) noexcept;
};

/// The backend of a device type; nullptr for the CPU, and for a type that this build does not support.
const Backend* backend(Device::Type type);
/// The backend of a device; nullptr for the CPU.
inline const Backend* backend(Device device) { return device.is_cpu() ? nullptr : backend(device.type); }
/// A backend that replaces the CUDA backend, such as one that records calls instead of running kernels; usually null.
extern std::atomic<const Backend*> cuda_stands_in;
/// True for a CUDA device with tensor cores for bf16: compute capability 8.0 or newer.
inline bool multiplies_bf16(Device device) {
  const Backend* const there = backend(device);
  return there && there->multiplies_bf16(device.index);
}

}  // namespace lockstep
