#pragma once
// Streams and events: the order in which a device works, and how one stream waits for another. On the CPU every
// operation is done when it returns, so that there all of this is free and does nothing: code with streams is the same
// for both.
#include <string>

#include "tensor/tensor.h"

namespace lockstep {

/// A queue of work on a device; work of different streams may overlap. Movable; waits for its work when destroyed.
class Stream {
 public:
  /// urgent: the device prefers its work to that of other streams.
  explicit Stream(Device device, bool urgent = false);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  Device device() const { return device_; }
  void* handle() const { return handle_; }  ///< cudaStream_t
  /// Waits until all work put on it is done, and raises what went wrong in it.
  void synchronize() const;

 private:
  Device device_;
  void* handle_ = nullptr;
};

/// While it lives, operations of this thread on the stream's device go to that stream.
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;

 private:
  Device device_;
  void* previous_ = nullptr;
};

/// A point in a stream that others can wait for.
class Event {
 public:
  explicit Event(Device device, bool timed = false);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  /// The point that this thread's current stream of the event's device has reached.
  void record();
  /// What this thread's current stream is given from now on runs after the event.
  void wait() const;
  bool done() const;
  void synchronize() const;
  /// Milliseconds from `start` to this event, both timed and done. 0 on the CPU.
  double milliseconds_since(const Event& start) const;

 private:
  Device device_;
  void* handle_ = nullptr;
};

/// Waits until everything on the device is done, and raises what went wrong there.
void synchronize(Device device);

/// What the device computes from here on is not to be believed (a collective was given up in the middle): whoever waits
/// for it, or copies from it to the host, gets this as an Error. Until it is taken back with an empty `why`. From any
/// thread.
void distrust(Device device, const std::string& why);

/// An uninitialised tensor on the CPU whose memory the backend of `device` has pinned, so that copies to and from that
/// type of device are asynchronous and fast; plain memory when `device` is the CPU.
Tensor empty_pinned(const Shape& shape, DType dtype, Device device);
/// Starts to copy between two contiguous tensors of one shape and dtype, in the order of the current stream, and
/// returns at once: a side on the CPU must be pinned, and must be left alone until an event recorded after this is
/// done.
void copy_async(const Tensor& source, const Tensor& target);

}  // namespace lockstep
