#pragma once
// Activation checkpointing (Chen et al., 2016): keep only the inputs of a piece of the model, and run it again when its
// gradient is needed. Random numbers are replayed, so dropout gives the same bits. The second run begins with the state
// that the first began with (tensors that fn changes in place: running statistics, counters), and leaves none behind.
#include <functional>
#include <memory>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// What one checkpoint does with its inputs between forward and backward, and around its work
/// (parallel/activation_checkpoints.h).
class CheckpointKeeper {
 public:
  virtual ~CheckpointKeeper() = default;
  /// Takes input number i. The function gives it back, for every backward; dropping it frees what it holds. An empty
  /// one: kept as it is.
  virtual std::function<Tensor()> keep(const Tensor& input, size_t i) = 0;
  /// Around the forward, and around the second run with its backward; end() also when they throw.
  virtual void begin(bool /*backward*/) {}
  virtual void end(bool /*backward*/) noexcept {}
};

/// Whether this thread is in the second run of a checkpoint, or its backward: what fn changes besides tensors (a member
/// that it counts up or assigns) is to be left alone then.
bool is_recomputing();

/// fn(inputs), remembering nothing of what happens inside. Parameters and other variables that fn reads are found by
/// themselves. Error in backward when the second run gives another shape or dtype.
Variable checkpoint(const std::function<Variable(const std::vector<Variable>&)>& fn,
                    const std::vector<Variable>& inputs, std::shared_ptr<CheckpointKeeper> keeper = nullptr);
Variable checkpoint(const std::function<Variable(const Variable&)>& fn, const Variable& input);
/// The same for a piece that gives several.
std::vector<Variable> checkpoint_many(const std::function<std::vector<Variable>(const std::vector<Variable>&)>& fn,
                                      const std::vector<Variable>& inputs,
                                      std::shared_ptr<CheckpointKeeper> keeper = nullptr);

}  // namespace lockstep
