#pragma once
// Activation checkpointing (Chen et al., 2016): keeps only the inputs of a part of the model, and runs that part again
// when its gradient is needed. Random numbers are replayed, so dropout gives the same bits. Tensors that the part
// changes in place (running statistics, counters) have the same values at the start of both runs. After the second run
// they get back the values that they had before it.
#include <functional>
#include <memory>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Policy of one checkpoint: where its inputs are kept between forward and backward, and what is done before and after
/// each run of its function (parallel/activation_checkpoints.h).
class CheckpointKeeper {
 public:
  virtual ~CheckpointKeeper() = default;
  /// Stores input number i. Backward calls the returned function once, to get the input back; destroying that function
  /// frees the stored data. If keep() returns an empty function, the checkpoint keeps the input itself.
  virtual std::function<Tensor()> keep(const Tensor& input, size_t i) = 0;
  /// begin(false) and end(false) enclose the forward. begin(true) and end(true) enclose the second run with its
  /// backward. end() is called after exceptions, too.
  virtual void begin(bool /*backward*/) {}
  virtual void end(bool /*backward*/) noexcept {}
};

/// True while this thread runs a checkpointed function the second time, or its backward. The function must then not
/// change state outside tensors, such as a counter or another member: the checkpoint can restore tensors only.
bool is_recomputing();

/// Returns fn(inputs) without saving intermediate results: backward runs fn again. Parameters and other variables that
/// fn reads get their gradients, too. Error in backward if the second run returns another shape or dtype.
Variable checkpoint(const std::function<Variable(const std::vector<Variable>&)>& fn,
                    const std::vector<Variable>& inputs, std::shared_ptr<CheckpointKeeper> keeper = nullptr);
Variable checkpoint(const std::function<Variable(const Variable&)>& fn, const Variable& input);
/// checkpoint() of a function with several results.
std::vector<Variable> checkpoint_many(const std::function<std::vector<Variable>(const std::vector<Variable>&)>& fn,
                                      const std::vector<Variable>& inputs,
                                      std::shared_ptr<CheckpointKeeper> keeper = nullptr);

}  // namespace lockstep
