#pragma once
// One-way messages between two ranks, in a process group of their own. Sends never wait for the other side, and
// receives start before the data is needed, so both overlap with the rank's computation.
//
//   compute stream     ... forward 3 ─┬─ forward 4 ─────────┬─ backward 1 ...
//   link 0 ─▶ 1                       └─▶ send 3            │
//   link 1 ─▶ 0        receive 1 (started early) ───────────┘
//
// Between CUDA devices, a link is an NCCL communicator with its own stream. Both ranks enqueue the same messages there
// in the order of the sender's schedule, so a receive that starts early delays only later messages of the same link.
// Streams wait for each other by events; check_streams() (schedule_check.h) proves for each schedule that these waits
// cannot deadlock. While a graph is recorded (tensor/graph.h), the link's stream branches off the recorded stream and
// joins it again, and the recorded stream waits where the host would wait otherwise.
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dist/process_group.h"
#include "pipeline/module.h"
#include "tensor/stream.h"

namespace lockstep::pipeline {

/// One rank's end of a link: either the end that sends or the end that receives.
class Link {
 public:
  /// `group` consists of the two ranks, sender first. Both ranks must call this constructor together. Unless both are
  /// on CUDA devices, messages go through the host. ahead: number of messages by which the host may run ahead of the
  /// device; this bounds the memory of messages.
  Link(std::shared_ptr<dist::ProcessGroup> group, Device device, int ahead);

  /// Queues tensors for sending. If `shapes` is given, sends the shapes first. Keeps the tensors alive until they are
  /// sent.
  void send(const std::vector<Tensor>& tensors, const std::string& tag, const Shapes* shapes = nullptr);
  /// Waits for the shapes of the next message.
  Shapes receive_shapes(const std::string& tag);
  /// Starts to receive a message of tensors of these shapes.
  void post(const std::vector<Shapes::One>& tensors, const std::string& tag);
  bool is_posted() const { return !posted_.empty(); }  ///< true after a post() that has no arrive() yet
  /// Waits for the message of the oldest post() that has no arrive() yet, and returns its tensors on device(). With
  /// NCCL, the current stream waits instead of the host.
  std::vector<Tensor> arrive();
  /// Waits until everything is sent; with NCCL, the current stream waits.
  void flush();
  /// Drops all messages after an error.
  void forget();
  /// Bytes sent over this link; its own set-up is not counted.
  int64_t bytes_sent() const { return group_->traffic().sent - sent_before_; }
  /// The device that tensors are received on.
  Device device() const { return device_; }
  /// The two ranks, sender first.
  dist::ProcessGroup& group() const { return *group_; }
  /// True if the stream, not the host, waits for messages.
  bool on_streams() const { return on_streams_; }
  /// Seconds that the stream has waited in arrive() since the last take_waited(), if on_streams(). The stream must have
  /// finished these waits.
  double take_waited();

 private:
  struct Message {
    std::vector<dist::Work> work;
    std::vector<Tensor> tensors;
    std::shared_ptr<std::atomic<bool>> awaited = std::make_shared<std::atomic<bool>>(false);
  };
  int peer() const { return 1 - group_->rank(); }
  static void wait(Message& message);
  static bool is_done(const Message& message);
  /// Waits until at most `limit` of the messages are in flight on the device.
  static void keep_pace(std::deque<Message>& messages, size_t limit);

  const std::shared_ptr<dist::ProcessGroup> group_;
  const Device device_;
  const size_t ahead_;
  bool between_devices_ = false, on_streams_ = false;
  int64_t sent_before_ = 0;                      // traffic of the set-up
  std::deque<Message> sent_, posted_, arrived_;  // arrived_: received messages that the device may still be waiting for
  std::vector<std::pair<Event, Event>> waits_;
};

}  // namespace lockstep::pipeline
