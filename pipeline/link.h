#pragma once
// Messages one way between two ranks, in a group of their own: sending never waits for the other side, and receives are
// posted ahead, so both go on while the rank computes.
//
//   compute stream   ... forward 3 ─┬─ forward 4 ──────┬─ backward 1 ...
//   link 0 ─▶ 1                     └▶ send 3           │
//   link 1 ─▶ 0        receive 1 (posted ahead) ────────┘
//
// Between CUDA devices a link is a communicator of NCCL and a stream. Both ranks put the same messages there in the
// same order, that of the sender's schedule, so a receive that is posted ahead holds up nothing but later messages of
// its link; streams wait for each other by events. check_streams() (schedule_check.h) shows of each schedule that no
// circle of them waits. In a graph (tensor/graph.h) messages fork and join those streams; where the host would wait for
// a message, the recorded stream does.
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist/process_group.h"
#include "pipeline/module.h"
#include "tensor/stream.h"

namespace lockstep::pipeline {

/// What the two ranks agree on before data moves: shapes and dtypes, who wants a gradient, and how many random numbers
/// the micro-batch has drawn so far (the next stage goes on from there).
struct Shapes {
  struct One {
    DType dtype;
    Shape shape;
    bool wants_grad;
    bool on_device = false;
    friend bool operator==(const One&, const One&) = default;
  };
  std::vector<One> tensors;
  uint64_t random_call = 0;
  friend bool operator==(const Shapes&, const Shapes&) = default;

  static constexpr size_t most_tensors = 16;
  static Shapes of(const Values& values, uint64_t random_call);
  /// Tensors that came, as leaves of the next stage.
  Values leaves(const std::vector<Tensor>& tensors) const;
  std::string text() const;
};

std::vector<Tensor> tensors_of(const Values& values);

class Link {
 public:
  /// `group` has the two ranks, the sender first; both make their end at the same time, and find out whether both are
  /// on CUDA devices: else their messages go through the host. ahead: how many messages of a device its host may be
  /// ahead of it, which bounds the memory that they hold.
  Link(std::shared_ptr<dist::ProcessGroup> group, Device device, int ahead);

  /// With shapes: sends them first. Keeps what it sends until it is gone.
  void send(const std::vector<Tensor>& tensors, const std::string& tag, const Shapes* shapes = nullptr);
  /// Waits for the shapes.
  Shapes receive_shapes(const std::string& tag);
  /// Starts to receive tensors of these shapes; arrive() waits for the oldest that was posted. By NCCL it is the
  /// current stream that waits, as in flush(), and not the host.
  void post(const std::vector<Shapes::One>& tensors, const std::string& tag);
  std::vector<Tensor> arrive();
  /// Whether arrive() would not wait.
  bool has_come() const;
  /// Returns when everything is gone.
  void flush();
  /// After an error.
  void forget();
  int64_t bytes_sent() const { return group_->traffic().sent - sent_before_; }
  Device device() const { return device_; }
  dist::ProcessGroup& group() const { return *group_; }
  /// Whether streams wait for what comes, and the host does not.
  bool on_streams() const { return on_streams_; }
  /// Then: seconds that the stream has waited in arrive() since the last call. All of it must be done.
  double take_waited();

 private:
  using Flag = std::shared_ptr<std::atomic<bool>>;
  struct Message {
    std::vector<dist::Work> work;
    std::vector<Tensor> tensors;
    Flag awaited;
  };
  int peer() const { return 1 - group_->rank(); }
  static void wait(Message& message);
  static bool is_done(const Message& message);
  /// Waits until no more than `most` of them are under way on the device.
  static void keep_pace(std::deque<Message>& messages, size_t most);

  const std::shared_ptr<dist::ProcessGroup> group_;
  const Device device_;
  const size_t ahead_;
  bool between_devices_ = false, on_streams_ = false;
  int64_t sent_before_ = 0;                   // while it was made
  std::deque<Message> sent_, posted_, came_;  // came_: what the device may still wait for
  std::vector<std::pair<Event, Event>> waits_;
};

}  // namespace lockstep::pipeline
