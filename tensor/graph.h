#pragma once
// Graph: work recorded once and replayed with one call. A step of many small kernels then costs the host microseconds
// instead of one launch per kernel. Uses CUDA graphs; on the CPU a replay calls the function again.
//
//   Tensor x = empty({64, 784}, {.device = cuda}), loss;
//   Graph step(cuda);
//   step.capture([&] {
//     optimizer.zero_grad(true);            // true: gradients keep their memory
//     Variable l = mse_loss(model(x), y);
//     l.backward();
//     loss = l.tensor();
//   });
//   for (const auto& batch : batches) {
//     x.copy_(batch);                       // new values in the same tensor
//     step.replay();
//     optimizer.step();
//   }
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "tensor/device.h"
#include "tensor/random.h"

namespace lockstep {

/// Recorded work on one device. Movable.
class Graph {
 public:
  explicit Graph(Device device);
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  /// Calls `body` twice: once normally, so that everything created on first use exists, and once to record its work on
  /// the device. A replay repeats exactly that work: shapes, numbers from the host and addresses stay the same.
  ///
  /// Memory. Tensors that `body` reads stay alive as long as the graph. Tensors that it creates have values after the
  /// first replay, and keep their memory as long as the graph. To give a replay new values, write them into a tensor
  /// that was created before the capture: the memory of tensors created by `body` is used for several of them in turn.
  ///
  /// Errors. Throws where a replay would go wrong: reading values on the host, operations on the CPU, and waiting for
  /// the device. After an Error nothing is recorded. A recorded optimizer step needs Optimizer::before_replay() before
  /// each replay.
  ///
  /// Random numbers. A replay draws from the generator as `body` itself would, with the same bits, and leaves it in the
  /// same state. If `body` calls set_random_step() for later micro-batches, a replay counts them from the micro-batch
  /// that is current when the replay begins. Recording leaves the generator as it was.
  void capture(const std::function<void()>& body);
  /// The second half of capture(), for a caller that has already run `body` (perhaps with other values).
  void record(const std::function<void()>& body);
  /// Puts the recorded work on this thread's current stream. One replay at a time.
  void replay();
  bool is_captured() const { return handle_ || body_; }  ///< true after capture() or record()

  /// True while this thread captures, on any device.
  static bool is_capturing();
  /// True while this thread records on another device than the CPU; work on the host is then not replayed.
  static bool is_recording();
  /// Error if this thread records a graph of another device than `device`: work on `device` would not be replayed.
  static void check_recording(Device device);
  /// Number of recordings begun in this process. Freed memory is kept for the graphs whose recording began after its
  /// allocation.
  static uint32_t recordings();

  /// The random numbers that the recorded work draws; graph.cpp explains them.
  struct Random;

 private:
  Device device_;
  void* handle_ = nullptr;      // the backend's graph
  std::function<void()> body_;  // the function, on the CPU
  std::unique_ptr<Random> random_;
};

/// Called by next_random_key(). Records a draw on `device` and returns its key; nothing if this thread records no
/// graph.
std::optional<PhiloxKey> recorded_random_key(Device device, const RandomState& now);

}  // namespace lockstep
