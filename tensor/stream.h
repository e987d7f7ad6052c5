#pragma once
// Streams and events: the order of work on a device, and dependencies between streams. On the CPU every operation is
// done when it returns, so all of this does nothing there, and code with streams runs unchanged.
#include <string>

#include "tensor/tensor.h"

namespace lockstep {

/// A queue of work on a device; work of different streams may overlap. Movable. The destructor waits for its work.
class Stream {
 public:
  /// urgent: true if the device should prefer this stream's work to the work of other streams.
  explicit Stream(Device device, bool urgent = false);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  Device device() const { return device_; }
  void* handle() const { return handle_; }  ///< cudaStream_t
  /// Waits until all work on the stream is done, and throws the errors of that work.
  void synchronize() const;

 private:
  Device device_;
  void* handle_ = nullptr;
};

/// While a StreamScope lives, operations of this thread on the stream's device go to that stream.
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;

 private:
  Device device_;
  void* previous_ = nullptr;
};

/// A point in a stream that other streams and the host can wait for.
class Event {
 public:
  /// timed: true if milliseconds_since() will be called with this event.
  explicit Event(Device device, bool timed = false);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  /// Marks the point that this thread's current stream on the event's device has reached.
  void record();
  /// Makes this thread's current stream wait: work put on it from now on starts only after the event is reached.
  void wait() const;
  /// True if the point has been reached.
  bool done() const;
  /// Blocks the host until the point is reached.
  void synchronize() const;
  /// Milliseconds from `start` to this event; both must be timed and done. 0 on the CPU.
  double milliseconds_since(const Event& start) const;

 private:
  Device device_;
  void* handle_ = nullptr;
};

/// Waits until all work on the device is done, and throws the errors of that work.
void synchronize(Device device);

/// Marks the device's results as invalid from now on, because a collective was aborted midway. Every later wait for the
/// device and every copy from it to the host then throws an Error with the text `why`. A call with an empty `why` makes
/// results valid again. Any thread may call this.
void distrust(Device device, const std::string& why);

/// An uninitialised CPU tensor in memory pinned for `device`, so that copies to and from that type of device are fast
/// and asynchronous. Plain memory when `device` is the CPU.
Tensor empty_pinned(const Shape& shape, DType dtype, Device device);
/// Starts a copy between two contiguous tensors of one shape and dtype in the order of the current stream, and returns
/// at once. A tensor on the CPU must be pinned, and left alone until an event recorded after this call is done.
void copy_async(const Tensor& source, const Tensor& target);

}  // namespace lockstep
