#pragma once
// Optimizers that exchange gradients between ranks in their update. An engine with such an optimizer runs without ZeRO:
//
//   backward ─▶ sum of this rank's micro-batches ─▶ step(): unscale, check overflow, clip, exchange, update
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "nn/module.h"
#include "zero/partition.h"
#include "zero/zero.h"

namespace lockstep::engine {

/// Accumulates gradients, runs the optimizer's step, and saves its state. Made by Exchanging::exchange().
class Exchange {
 public:
  struct Options {
    zero::NonFinite nonfinite = zero::NonFinite::error;  ///< what to do with gradients that are not finite
    bool accumulates = false;                            ///< true: a step has more than one micro-batch
    std::function<void(const std::string&)> note;        ///< prints a message for the user
  };
  virtual ~Exchange() = default;

  virtual void add() = 0;                ///< adds the gradients of a micro-batch to the sum
  virtual void discard() = 0;            ///< drops the sum of the micro-batches' gradients
  virtual int64_t steps() const = 0;     ///< steps that were not skipped
  virtual std::string kind() const = 0;  ///< kind of exchange, for the plan in checkpoints: "onebit"
  /// Runs the optimizer's step, and drops the gradients; see zero::Zero::step(). The engine tells the loss scaler the
  /// outcome. Collective.
  virtual zero::StepReport step(const zero::StepOptions& options) = 0;

  // Tensors that ZeRO saves too have ZeRO's names in a checkpoint. Names of all others begin with Section::saved.
  /// The tensors that this rank saves. Collective.
  virtual std::vector<zero::StatePiece> state() = 0;
  /// The optimizer's counters.
  virtual std::map<std::string, double> numbers() const = 0;
  /// Returns the tensors into which the caller loads a checkpoint. Then call load_state(), which puts their values into
  /// the optimizer.
  virtual std::vector<zero::StatePiece> state_to_load(const checkpoints::Info& saved, bool with_optimizer) = 0;
  /// Puts the tensors of state_to_load() and the counters `numbers` into the optimizer.
  virtual void load_state(const std::map<std::string, double>& numbers) = 0;
  /// Marks all parameters as changed. Call it after a checkpoint has overwritten them.
  virtual void loaded() = 0;

  virtual double bytes_per_parameter() const = 0;  ///< bytes of optimizer state per parameter
  /// True while all ranks hold the same parameters.
  virtual bool is_synchronized() const = 0;
  /// Named numbers that a run reports at its end.
  virtual std::vector<std::pair<std::string, int64_t>> totals() const = 0;
};

/// Optimizers that exchange gradients in their update also derive from this class.
class Exchanging {
 public:
  virtual ~Exchanging() = default;
  /// Makes the Exchange of an engine that trains `model` on the ranks of `group`. Collective.
  virtual std::unique_ptr<Exchange> exchange(nn::Module& model, dist::ProcessGroup& group,
                                             Exchange::Options options) = 0;
};

// For a parameter NAME and a state tensor KEY such as exp_avg: a checkpoint has the names "model.NAME",
// "optimizer.KEY.NAME" and "optimizer.group.0.lr"; an optimizer's state has "state.NAME.KEY" and "group.0.lr".
/// Extracts the parameter's name from a name in a checkpoint: "w" from "model.w" or "optimizer.exp_avg.w".
std::string parameter_of(const std::string& saved);
/// Converts a name in an optimizer's state to the name in a checkpoint: "state.w.step" to "optimizer.step.w".
std::string saved_name(const std::string& of_state);
/// Converts a name in a checkpoint to the name in an optimizer's state: "optimizer.step.w" to "state.w.step".
std::string state_name(const std::string& saved);

}  // namespace lockstep::engine
