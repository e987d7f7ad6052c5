#pragma once
// Mixture-of-experts models: the --experts option, and statistics of the experts per training step.
#include <string>
#include <vector>

#include "data/json.h"
#include "parallel/moe/layer.h"
#include "train/job.h"

namespace lockstep::train {

/// Experts that replace the MLP in the last block of each group of `every` blocks.
struct Experts {
  moe::MoeOptions options{.width = 0, .experts = 0};  ///< experts = 0: none
  int64_t every = 2;
  /// Replaces MLPs of the model by these experts. ranks: the expert-parallel group.
  void add_to(nn::Module& model, std::shared_ptr<dist::ProcessGroup> ranks = nullptr) const;
};
/// Parses "8,top_k=2,every=2,drop_tokens=false": the number of experts, and keys of moe::MoeOptions. "" means no
/// experts. Error for an unknown key.
Experts read_experts(const std::string& text);
/// Adds the experts that `text` (--experts) describes to a model, before training, and divides them among the job's
/// expert-parallel ranks. Error for an incompatible plan or strategy.
void add_experts(nn::Module& model, const std::string& text, const TrainJob& job);
/// Help text of --experts.
inline constexpr const char* experts_help =
    "experts instead of the MLP in some blocks, and how: "
    "8,top_k=2,every=2,capacity_factor=1,eval_capacity_factor=1,min_capacity=4,drop_tokens=true,balance_coef=0.01,"
    "z_coef=0,noise=none (or jitter, rsample),use_residual=false";

/// Counts the tokens of this rank's experts in the forward passes of a step.
class ExpertCounts {
 public:
  /// counts: true on one of the tensor-parallel ranks, which all have the same experts; false on the others.
  ExpertCounts(nn::Module& model, bool counts);
  ~ExpertCounts();
  ExpertCounts(const ExpertCounts&) = delete;
  bool any() const { return experts_ > 0; }  ///< true if the model has experts
  /// Sums over all ranks, and adds aux_loss, dropped and expert_tokens to `line`, the step's line of metrics.jsonl.
  /// times: how often each layer ran in the step, on all ranks together. Collective.
  void report(data::Json& line, int64_t times, const Team& team);
  /// The last step's aux_loss and dropped, and busiest_expert: tokens of the busiest expert, relative to an even share.
  const data::Json& last() const { return last_; }

 private:
  void add(const moe::MoeLayer& layer);
  std::vector<std::pair<nn::Module::Calls, int>> hooks_;
  int64_t experts_ = 0;
  std::vector<double> tokens_;  // assignments per expert, then all assignments, then the dropped ones
  std::vector<Tensor> aux_losses_;
  data::Json last_ = data::Json::Object();
};

}  // namespace lockstep::train
