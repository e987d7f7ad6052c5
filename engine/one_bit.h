#pragma once
// Replaces ZeRO in an engine whose optimizer exchanges gradients between ranks itself (parallel/onebit/). Internal to
// engine/.
//
//   backward ─▶ sum of this rank's micro-batches ─▶ onebit::Optimizer::step(): unscale, check overflow, clip,
//                                                   exchange, update
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "nn/module.h"
#include "parallel/agreement.h"
#include "parallel/buckets.h"
#include "parallel/onebit/optimizer.h"
#include "zero/zero.h"

namespace lockstep::engine {

/// Accumulates gradients, runs the optimizer's step, and saves its state.
class OneBit {
 public:
  struct Options {
    zero::NonFinite nonfinite = zero::NonFinite::error;  ///< what to do with gradients that are not finite
    bool accumulates = false;                            ///< true: a step has more than one micro-batch
    std::function<void(const std::string&)> note;        ///< called with messages for people
  };
  /// Broadcasts rank 0's frozen parameters and buffers; the optimizer's constructor has done so for trained parameters.
  /// Collective.
  OneBit(nn::Module& model, onebit::Optimizer& optimizer, dist::ProcessGroup& group, Options options);

  /// The optimizer given to the constructor.
  onebit::Optimizer& optimizer() { return optimizer_; }
  /// Adds the gradients of a micro-batch to the sum.
  void add() {
    if (sum_) sum_->add();
  }
  /// Drops the sum of the micro-batches' gradients.
  void discard() {
    if (sum_) sum_->discard();
  }
  /// Runs the optimizer's step, and drops the gradients; see zero::Zero::step(). Collective.
  zero::StepReport step(const zero::StepOptions& options);

  // Tensors in a checkpoint have the same names as with ZeRO. Besides, there are two tensors of compression errors,
  // with names that begin with this text. These two can be loaded only by as many ranks as saved them.
  static constexpr const char* owed = "optimizer.onebit.";
  /// The tensors that this rank saves. Collective: with 0/1 Adam, the ranks first synchronize.
  std::vector<zero::StatePiece> state();
  /// The optimizer's counters.
  std::map<std::string, double> numbers() const;
  /// Returns the tensors into which the caller loads a checkpoint. Then call load_state(), which puts their values into
  /// the optimizer.
  std::vector<zero::StatePiece> state_to_load(const checkpoints::Info& saved, bool with_optimizer);
  /// Puts the tensors of state_to_load() and the counters `numbers` into the optimizer.
  void load_state(const std::map<std::string, double>& numbers);
  /// Marks all parameters as changed. Call it after a checkpoint has overwritten them.
  void loaded();

  /// Bytes of optimizer state per parameter, including compression errors.
  double bytes_per_parameter() const;

 private:
  int64_t first_nonfinite() const;
  void name_nonfinite(int64_t mine, zero::StepReport& report) const;
  std::vector<zero::StatePiece> model_state() const;
  void add_errors(std::vector<zero::StatePiece>& to, const Tensor& mine, const Tensor& served) const;

  nn::Module& model_;
  onebit::Optimizer& optimizer_;
  dist::ProcessGroup& group_;
  Options options_;
  std::vector<nn::NamedParameter> trained_, untrained_;  // by requires_grad at construction
  std::optional<parallel::GradientAccumulator> sum_;
  parallel::FrozenSince frozen_;
  std::map<std::string, Tensor> loading_;  // tensors of state_to_load(), by name in the checkpoint
};

}  // namespace lockstep::engine
