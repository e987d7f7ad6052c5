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
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "tensor/device.h"
#include "tensor/random.h"

namespace lockstep {

class Graph {
 public:
  explicit Graph(Device device);
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  /// Calls `body` twice: as it is, so that whatever is made on first use exists, and then to record what it puts on the
  /// device. Every replay repeats exactly that: shapes, numbers from the host and addresses stay as they were. Tensors
  /// that it reads stay alive as long as the graph; what it makes has values after the first replay, and keeps its
  /// memory as long as the graph. What is to be written before a replay must be made before, as memory of the recording
  /// may have held something else earlier in it. Error where a replay would go wrong: reading values on the host,
  /// operations on the CPU, waiting. A step of an optimizer wants Optimizer::before_replay() before each replay. After
  /// an Error there is no recording.
  ///
  /// Random numbers are those of the generator at each replay, which then stands where the function would have left it:
  /// the bits of the function itself. It may go on to other micro-batches of the step (set_random_step), which are
  /// counted from the first. Recording draws none.
  void capture(const std::function<void()>& body);
  /// The second half of capture(), for who has called `body`, or the same with other values, already.
  void record(const std::function<void()>& body);
  /// Puts the recorded work on this thread's current stream. One replay at a time.
  void replay();
  bool is_captured() const { return handle_ || body_; }

  /// Whether this thread records now.
  static bool is_capturing();
  /// The same on another device than the CPU: what is done on the host now is not repeated.
  static bool is_recording();
  /// Recordings that were begun in this process: memory that is older than one of them is kept for it.
  static uint32_t recordings();

  struct Random;

 private:
  Device device_;
  void* handle_ = nullptr;      // of the backend
  std::function<void()> body_;  // on the CPU
  std::unique_ptr<Random> random_;
};

/// For next_random_key(): the key of a draw on `device` that this thread records; none when it does not record.
std::optional<PhiloxKey> recorded_random_key(Device device, const RandomState& now);

}  // namespace lockstep
