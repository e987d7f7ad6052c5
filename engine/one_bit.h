#pragma once
// What an engine does in ZeRO's place when its optimizer moves gradients between ranks itself (parallel/onebit/).
// Internal to engine/.
//
//   backward ─▶ sum of this rank's micro-batches ─▶ onebit::Optimizer::step(): unscale, find overflow, clip, exchange,
//   update
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "nn/module.h"
#include "parallel/agreement.h"
#include "parallel/buckets.h"
#include "parallel/onebit/optimizer.h"
#include "zero/zero.h"

namespace lockstep::engine {

class OneBit {
 public:
  struct Options {
    zero::NonFinite nonfinite = zero::NonFinite::error;
    bool accumulates = false;  ///< several micro-batches a step
    std::function<void(const std::string&)> note;
  };
  /// Rank 0's frozen parameters and buffers go everywhere, as the trained ones did when the optimizer was made.
  /// Collective.
  OneBit(nn::Module& model, onebit::Optimizer& optimizer, dist::ProcessGroup& group, Options options);

  onebit::Optimizer& optimizer() { return optimizer_; }
  /// The gradients of a micro-batch are there.
  void add() {
    if (sum_) sum_->add();
  }
  void discard() {
    if (sum_) sum_->discard();
  }
  /// As zero::Zero::step(). Collective.
  zero::StepReport step(const zero::StepOptions& options);

  // Checkpoints, by the names that ZeRO gives. What compression owes each rank lies in two tensors that only as many
  // ranks can load.
  static constexpr const char* owed = "optimizer.onebit.";
  /// This rank's tensors. Collective: 0/1 Adam's ranks exchange first.
  std::vector<zero::StatePiece> state();
  std::map<std::string, double> numbers() const;
  /// The tensors that a checkpoint is to fill; load_state() takes them over.
  std::vector<zero::StatePiece> state_to_load(const checkpoints::Info& saved, bool with_optimizer);
  void load_state(const std::map<std::string, double>& numbers);
  /// Parameters have been written.
  void loaded();

  /// Of optimizer state, errors of compression included.
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
  std::vector<nn::NamedParameter> trained_, untrained_;  // when this was made
  std::optional<parallel::GradientAccumulator> sum_;
  parallel::FrozenSince frozen_;
  std::map<std::string, Tensor> loading_;  // by their names in the checkpoint
};

}  // namespace lockstep::engine
