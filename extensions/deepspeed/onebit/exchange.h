#pragma once
// The Exchange of engines with a 1-bit optimizer. These engines run without ZeRO. See engine/exchange.h.
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/exchange.h"
#include "extensions/deepspeed/onebit/optimizer.h"
#include "parallel/agreement.h"
#include "parallel/gradient_sum.h"

namespace lockstep::engine {

/// Accumulates gradients, runs the optimizer's step, and saves its state.
class OneBit : public Exchange {
 public:
  /// Broadcasts rank 0's frozen parameters and buffers; the optimizer's constructor has done so for trained parameters.
  /// Collective.
  OneBit(nn::Module& model, onebit::OneBitOptimizer& optimizer, dist::ProcessGroup& group, Options options);

  void add() override {
    if (sum_) sum_->add();
  }
  void discard() override {
    if (sum_) sum_->discard();
  }
  int64_t steps() const override { return optimizer_.steps(); }
  std::string kind() const override { return "onebit"; }
  zero::StepReport step(const zero::StepOptions& options) override;

  // Names of the two saved tensors of compression errors begin with this text. All other tensors have ZeRO's names. The
  // compression errors can be loaded only by the same number of ranks that saved them.
  static constexpr const char* owed = "optimizer.onebit.";
  /// With 0/1 Adam, the ranks first synchronize.
  std::vector<zero::StatePiece> state() override;
  std::map<std::string, double> numbers() const override;
  std::vector<zero::StatePiece> state_to_load(const checkpoints::Info& saved, bool with_optimizer) override;
  void load_state(const std::map<std::string, double>& numbers) override;
  void loaded() override;

  /// Includes compression errors.
  double bytes_per_parameter() const override;
  bool is_synchronized() const override { return optimizer_.is_synchronized(); }
  std::vector<std::pair<std::string, int64_t>> totals() const override;

 private:
  int64_t first_nonfinite() const;
  void name_nonfinite(int64_t mine, zero::StepReport& report) const;
  std::vector<zero::StatePiece> model_state() const;
  void add_errors(std::vector<zero::StatePiece>& to, const Tensor& mine, const Tensor& served) const;

  nn::Module& model_;
  onebit::OneBitOptimizer& optimizer_;
  dist::ProcessGroup& group_;
  Options options_;
  std::vector<nn::NamedParameter> trained_, untrained_;  // by requires_grad at construction
  std::optional<parallel::GradientSum> sum_;
  parallel::FrozenSince frozen_;
  std::map<std::string, Tensor> loading_;  // tensors of state_to_load(), by name in the checkpoint
};

}  // namespace lockstep::engine
