#pragma once
// Experts of a program: how its command line asks for them, and what they did in each step of a training.
#include <string>
#include <vector>

#include "data/json.h"
#include "parallel/moe/layer.h"
#include "train/job.h"

namespace lockstep::train {

/// Experts in place of the MLP of the last of `every` blocks.
struct Experts {
  moe::Options options{.width = 0, .experts = 0};  ///< without experts there are none
  int64_t every = 2;
  void add_to(nn::Module& model, std::shared_ptr<dist::ProcessGroup> ranks = nullptr) const;
};
/// "8,top_k=2,every=2,drop_tokens=false": how many, and keys of moe::Options; "" is none. Error that says what is
/// known.
Experts read_experts(const std::string& text);
/// Into a model before it is trained, over the ranks of ep. Error for a plan or a strategy that cannot be with them.
void add_experts(nn::Module& model, const std::string& text, const Job& job);
inline constexpr const char* experts_help =
    "experts in place of the MLP of some blocks, and how: "
    "8,top_k=2,every=2,capacity_factor=1,eval_capacity_factor=1,min_capacity=4,drop_tokens=true,balance_coef=0.01,"
    "z_coef=0,noise=none (or jitter, rsample),use_residual=false";

/// What the experts of this rank did in the forwards of a step.
class ExpertCounts {
 public:
  /// counts: whether this rank does (tensor-parallel ranks have the same experts).
  ExpertCounts(nn::Module& model, bool counts);
  ~ExpertCounts();
  ExpertCounts(const ExpertCounts&) = delete;
  bool any() const { return experts_ > 0; }
  /// Over all ranks, into the line of a step: aux_loss, dropped, expert_tokens. Each layer ran `times` times.
  void report(data::Json& line, int64_t times, const Team& team);
  /// The last step's aux_loss and dropped, and busiest_expert: its tokens, times those of an even share.
  const data::Json& last() const { return last_; }

 private:
  void add(const moe::Layer& layer);
  std::vector<std::pair<nn::Module::Calls, int>> hooks_;
  int64_t experts_ = 0;
  std::vector<double> tokens_;  // that chose each expert; then all, and those dropped
  std::vector<Tensor> aux_losses_;
  data::Json last_ = data::Json::Object();
};

}  // namespace lockstep::train
