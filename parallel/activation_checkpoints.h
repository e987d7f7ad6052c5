#pragma once
// Activation checkpointing with DeepSpeed's options: which pieces of a model are run again in backward instead of
// keeping what they computed, and where their inputs stay until then.
//
//   parallel::ActivationCheckpoints checkpoints({.cpu_checkpointing = true});
//   checkpoints.wrap_blocks(model);                                        // every block of it; or piece by piece:
//   y = checkpoints([&](const auto& in) { return block(in[0]); }, {x});
//
// Gradients have the same bits as without, for every option: dropout draws the same numbers again.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/checkpoint.h"
#include "dist/process_group.h"
#include "nn/module.h"

namespace lockstep::parallel {

/// Names are those of DeepSpeed's keys where it has one.
struct CheckpointOptions {
  /// Each rank of `group` keeps a part of an input; they are gathered before the second run.
  bool partition_activations = false;
  bool cpu_checkpointing = false;  ///< inputs stay in host memory, booked as Memory::offload
  /// In one buffer made in advance; needs partition_activations, as in DeepSpeed.
  bool contiguous_memory_optimization = false;
  int64_t number_checkpoints = 0;                ///< how many inputs the buffer has room for
  bool synchronize_checkpoint_boundary = false;  ///< wait for the device before and after each run
  bool profile = false;                          ///< measure both runs: report()
  int64_t every = 1;                             ///< wrap_blocks(): the first of so many blocks
  /// wrap_blocks(): what a block's forward leaves beside its output, for a loss (moe::Layer::aux_loss).
  std::function<std::vector<Variable*>(nn::Module& block)> beside = {};
  dist::ProcessGroup* group = nullptr;  ///< ranks that have the same inputs (model parallel)
};

class ActivationCheckpoints {
 public:
  using Options = CheckpointOptions;
  /// Error when contiguous_memory_optimization lacks what it needs.
  explicit ActivationCheckpoints(const Options& options = {});

  /// fn(inputs), as checkpoint() in autograd/checkpoint.h. partition_activations: backward is collective in `group`.
  Variable operator()(const std::function<Variable(const std::vector<Variable>&)>& fn,
                      const std::vector<Variable>& inputs, const std::string& name = "checkpoint");
  std::vector<Variable> many(const std::function<std::vector<Variable>(const std::vector<Variable>&)>& fn,
                             const std::vector<Variable>& inputs, const std::string& name = "checkpoint");
  /// Checkpoints calls of blocks from now on, the first of every `every`: those of the outermost ModuleLists below
  /// `module`, or without one the layers of the outermost Sequential. Gives back their names; Error when there are
  /// none. The model must not move.
  std::vector<std::string> wrap_blocks(nn::Module& module);
  /// Takes all of that back, where the models are still there.
  void unwrap_blocks();

  /// Options that change nothing here, and why.
  const std::vector<std::string>& notes() const;

  struct Times {
    std::string name;
    int64_t forwards = 0, backwards = 0;
    double forward_ms = 0, backward_ms = 0;
  };
  /// With `profile`: all calls by name since the last reset_times(). A backward's time holds its second forward.
  std::vector<Times> times() const;
  void reset_times();
  /// The same as a table of milliseconds a call.
  std::string report() const;

 private:
  struct State;
  class Keeper;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::parallel
