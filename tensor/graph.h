#pragma once
// A piece of work recorded once and started again with one call: a step of many small kernels then costs the host
// microseconds instead of a launch each. CUDA graphs underneath; on the CPU the function itself runs again.
//
//   Tensor x = empty({64, 784}, {.device = cuda}), loss;
//   Graph step(cuda);
//   step.capture([&] {                      // zero_grad(true): the gradients stay where they are
//     optimizer.zero_grad(true);
//     Variable l = mse_loss(model(x), y);
//     l.backward();
//     loss = l.tensor();
//   });
//   for (const auto& batch : batches) {
//     x.copy_(batch);                       // new values into the same tensors
//     step.replay();
//     optimizer.step();
//   }
#include <functional>

#include "tensor/device.h"

namespace lockstep {

class Graph {
 public:
  explicit Graph(Device device) : device_(device) { check_device("Graph", device); }
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  /// Calls `body` twice: as it is, so that whatever is made on first use exists, and then to record what it puts on the
  /// device. Every replay repeats exactly that: shapes, numbers from the host and addresses stay as they were. Tensors
  /// that it reads must stay alive; what it makes has values after the first replay, and keeps its memory as long as
  /// the graph. Error where a replay would go wrong: random numbers (the same ones each time), reading values on the
  /// host, waiting. A step of an optimizer wants Optimizer::before_replay() before each replay. After an Error there is
  /// no recording.
  void capture(const std::function<void()>& body);
  /// Puts the recorded work on this thread's current stream. One replay at a time.
  void replay();
  bool is_captured() const { return handle_ || body_; }

  /// Whether this thread records now.
  static bool is_capturing();

 private:
  Device device_;
  void* handle_ = nullptr;      // of the backend
  std::function<void()> body_;  // on the CPU
};

}  // namespace lockstep
