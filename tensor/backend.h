#pragma once
// What a device other than the CPU brings beside its table of kernels: memory, copies, streams and events. One struct
// of function pointers, filled in tensor/cuda/backend.cpp; a build without CUDA has none.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensor/device.h"

namespace lockstep {

struct Kernels;
struct Solvers;
struct RecordedKey;
class Tensor;
inline constexpr int keys_at_once = 128;  ///< arguments of one kernel

/// Streams and events are the device's own handles. Every function may throw an Error that names what failed, but those
/// marked noexcept. `device` is the index among the devices of this type.
struct Backend {
  const Kernels* kernels;
  const Solvers* solvers;      ///< see solvers.h; nullptr: the CPU decomposes its matrices
  int (*device_count)();       ///< 0 when there is none that works
  std::string (*why_none)();   ///< for the user, when device_count() is 0
  std::string (*describe)();   ///< several lines for `lockstep env`
  void (*select)(int device);  ///< what this thread does next goes to this device
  /// Memory in the order of the thread's current stream: it may be used there at once. It is freed in the order of that
  /// same stream; who uses it on another one keeps it until the first has waited for the other's event.
  void* (*allocate)(size_t bytes, int device);
  void (*deallocate)(void* data, size_t bytes, int device, void* stream) noexcept;
  /// Takes memory over that deallocate() would free, when there are graphs that were begun after it was allocated
  /// (Graph::recordings() was `born` then): they may read it. False when there are none.
  bool (*keep_for_graphs)(void* data, int device, void* stream, uint32_t born) noexcept;
  size_t (*cached_bytes)(int device);  ///< kept by the pool, not held by any storage
  void (*release_cached)(int device);
  /// Copies bytes that lie in one piece on both sides, one of them on this type of device, in the order of the current
  /// stream. With `wait`, host memory on either side may be used again when it returns; else when the copy is done.
  void (*copy_bytes)(void* to, Device to_device, const void* from, Device from_device, size_t bytes, bool wait);
  void (*synchronize)(int device);                ///< waits for all streams; raises what went wrong in them
  void (*distrust)(int device, const char* why);  ///< see stream.h; nullptr: no more

  void* (*pin)(size_t bytes);  ///< host memory that copies to and from devices need not stage
  void (*unpin)(void* data) noexcept;
  void* (*new_stream)(int device, bool urgent);
  void (*free_stream)(void* stream, int device) noexcept;
  void* (*current_stream)(int device);
  void (*set_current_stream)(int device, void* stream);  ///< of this thread; nullptr: the device's default stream
  void (*synchronize_stream)(void* stream, int device);
  void* (*new_event)(int device, bool timed);
  void (*free_event)(void* event, int device) noexcept;
  void (*record)(void* event, void* stream, int device);
  void (*wait)(void* stream, void* event, int device);  ///< what is put on the stream later runs after the event
  bool (*done)(void* event, int device);
  void (*synchronize_event)(void* event, int device);
  double (*milliseconds)(void* start, void* end, int device);  ///< between two timed events that are done

  // Graphs (see graph.h). From begin to end, what this thread puts on its current stream is recorded and not done.
  void (*begin_capture)(int device);
  void* (*end_capture)(int device);
  void (*abandon_capture)(int device) noexcept;
  void (*launch_graph)(void* graph, int device);  ///< on this thread's current stream
  /// Writes up to keys_at_once keys into the device's memory, in the order of this thread's current stream.
  void (*set_keys)(RecordedKey* to, const RecordedKey* keys, int count, int device);
  void (*free_graph)(void* graph, int device) noexcept;

  // What a step of an optimizer needs beside its rule (see step_batch.h), on this thread's current device and stream.
  void (*store)(void* to, const void* from, size_t bytes);  ///< of the host, in words of 8; `from` is free at once
  void (*square_sums)(const void* pieces, int count, int64_t chunks, void* numbers, double* sums);
  void (*add_sums)(const void* pieces, int64_t count, const double* sums, double* totals);
  void (*take_norm)(const void* pieces, int64_t count, const double* sums, double* squares, void* numbers);
  void (*find_nonfinite)(const std::vector<Tensor>& x, int32_t* found);  ///< see nonfinite.h; contiguous
  /// As keep_for_graphs(), for memory of somebody else: such graphs have a part in its owner from here on.
  void (*hold_for_graphs)(const std::shared_ptr<void>& owner, int device, uint32_t born) noexcept;
};

/// The backend of a type of device; nullptr for the CPU and for what this build does not have.
const Backend* backend(Device::Type type);
/// The same for a device that check_device() has accepted; nullptr for the CPU.
inline const Backend* backend(Device device) { return device.is_cpu() ? nullptr : backend(device.type); }

}  // namespace lockstep
