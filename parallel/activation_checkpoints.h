#pragma once
// Activation checkpointing with DeepSpeed's options: parts of a model keep only their inputs and are run again in
// backward; the options say where the inputs are kept.
//
//   parallel::ActivationCheckpoints checkpoints({.cpu_checkpointing = true});
//   checkpoints.wrap_blocks(model);                                        // every block; or part by part:
//   y = checkpoints([&](const auto& in) { return block(in[0]); }, {x});
//
// Gradients are bit-identical to those without checkpoints for every option: dropout draws the same numbers again.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/activation_checkpoint.h"
#include "dist/process_group.h"
#include "nn/module.h"

namespace lockstep::parallel {

/// Options of ActivationCheckpoints, named as in DeepSpeed if DeepSpeed has the same option.
struct CheckpointOptions {
  /// true: each rank of `group` keeps only a shard of every input; the shards are all-gathered for the run in backward.
  bool partition_activations = false;
  bool cpu_checkpointing = false;  ///< true: keep inputs in host memory (Memory::offload)
  /// true: keep inputs in one preallocated buffer. As in DeepSpeed, this needs partition_activations.
  bool contiguous_memory_optimization = false;
  int64_t number_checkpoints = 0;                ///< checkpoints whose inputs fit into the buffer
  bool synchronize_checkpoint_boundary = false;  ///< synchronise the device before and after each run
  bool profile = false;                          ///< measure the time of both runs, see report()
  int64_t every = 1;                             ///< wrap_blocks() checkpoints the first of every `every` blocks
  /// For wrap_blocks(): returns the variables that a block's forward sets for the loss in addition to the block's
  /// output, such as moe::MoeLayer::aux_loss.
  std::function<std::vector<Variable*>(nn::Module& block)> beside = {};
  dist::ProcessGroup* group = nullptr;  ///< ranks that have the same inputs (model parallelism)
};

/// Runs functions and blocks as checkpoints. Copies of this object share its state; several threads may use them.
class ActivationCheckpoints {
 public:
  using Options = CheckpointOptions;
  /// Error if contiguous_memory_optimization is set without partition_activations or number_checkpoints.
  explicit ActivationCheckpoints(const Options& options = {});

  /// Runs fn(inputs) like checkpoint() of autograd/activation_checkpoint.h. With partition_activations the backward is
  /// collective over `group`. `name` names the row in report().
  Variable operator()(const std::function<Variable(const std::vector<Variable>&)>& fn,
                      const std::vector<Variable>& inputs, const std::string& name = "checkpoint");
  /// Runs fn(inputs) as a checkpoint, for a function that returns several variables.
  std::vector<Variable> many(const std::function<std::vector<Variable>(const std::vector<Variable>&)>& fn,
                             const std::vector<Variable>& inputs, const std::string& name = "checkpoint");
  /// From now on, runs blocks as checkpoints. Blocks are the elements of the outermost ModuleLists below `module` or,
  /// if there is no ModuleList, of the outermost Sequentials; else the modules that the model's layers() list, or those
  /// marked as repeated. The option `every` = n picks elements 0, n, 2 n, ... Returns the names of the picked blocks.
  /// Error if there are none. The modules must not move in memory.
  std::vector<std::string> wrap_blocks(nn::Module& module);
  /// Undoes wrap_blocks() for the models that still exist.
  void unwrap_blocks();

  /// Options that the caller set but that have no effect, and the reasons.
  const std::vector<std::string>& notes() const;

  /// Measured for the checkpoints of one name: the number of runs, and the milliseconds spent in them.
  struct Times {
    std::string name;
    int64_t forwards = 0, backwards = 0;
    double forward_ms = 0, backward_ms = 0;
  };
  /// All calls since the last reset_times(), by name. Empty unless the option `profile` is true. The time of a backward
  /// includes the second forward.
  std::vector<Times> times() const;
  void reset_times();  ///< starts measuring anew
  /// times() as a table of milliseconds per call.
  std::string report() const;

 private:
  struct State;
  class Keeper;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::parallel
