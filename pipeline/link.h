#pragma once
// Messages one way between two ranks, on a thread of their own: sending never waits for the other side, and receives
// are posted ahead, so both go on while the rank computes.
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "pipeline/module.h"

namespace lockstep::pipeline {

/// What the two ranks agree on before data moves: shapes and dtypes, who wants a gradient, and how many random numbers
/// the micro-batch has drawn so far (the next stage goes on from there).
struct Shapes {
  struct One {
    DType dtype;
    Shape shape;
    bool wants_grad;
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

/// Tensors of a CUDA device go through the host: NCCL wants both sides to call in one order, and receives are posted
/// ahead of sends.
class Link {
 public:
  /// `group` has the two ranks, this one too.
  Link(std::shared_ptr<dist::ProcessGroup> group, Device device) : group_(std::move(group)), device_(device) {}

  /// With shapes: sends them first. Keeps what it sends until it is gone.
  void send(const std::vector<Tensor>& tensors, const std::string& tag, const Shapes* shapes = nullptr);
  /// Waits for the shapes.
  Shapes receive_shapes(const std::string& tag);
  /// Starts to receive tensors of these shapes; arrive() waits for the oldest that was posted.
  void post(const std::vector<Shapes::One>& tensors, const std::string& tag);
  std::vector<Tensor> arrive();
  /// Whether arrive() would not wait.
  bool has_come() const;
  /// Returns when everything is gone.
  void flush();
  int64_t bytes_sent() const { return group_->traffic().sent; }

 private:
  using Flag = std::shared_ptr<std::atomic<bool>>;
  struct Message {
    std::vector<dist::Work> work;
    std::vector<Tensor> tensors;
    Flag awaited;
  };
  int peer() const { return 1 - group_->rank(); }
  static void wait(Message& message);

  std::shared_ptr<dist::ProcessGroup> group_;
  Device device_;
  std::deque<Message> sent_, posted_;
};

}  // namespace lockstep::pipeline
