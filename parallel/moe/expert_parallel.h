#pragma once
// Experts over ranks, beside data parallelism. World 8, 4 ranks to share the experts (DeepSpeed's ep_size):
//
//   rank          0 1 2 3   4 5 6 7
//   expert group  0 1 2 3 | 4 5 6 7       all-to-all inside; rank 0 has experts 0 .. E/4
//   data groups   0 - - - - 0             gradients of an expert: ranks 0 and 4, 1 and 5, ...
//                   1 - - - - 1           of everything else: all ranks
//
// The loss is the mean over all ranks; an expert has seen the tokens of its whole expert group, so its gradients are
// summed over the data group and divided by all ranks too.
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "parallel/ddp.h"
#include "parallel/moe/layer.h"

namespace lockstep::moe {

struct Groups {
  std::shared_ptr<dist::ProcessGroup> expert;  ///< neighbours, which share the experts
  std::shared_ptr<dist::ProcessGroup> data;    ///< those that have the same experts
};
/// Called by all ranks of `all`. Error when `expert_parallel` does not divide them.
Groups make_groups(dist::ProcessGroup& all, int expert_parallel);

/// DDP with experts: one wrapper for what all ranks have, one for the experts of this rank.
class DataParallel {
 public:
  /// `model` has moe::Layers on groups.expert.
  DataParallel(nn::Module& model, const Groups& groups, dist::ProcessGroup& all,
               const parallel::DdpOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;

  Variable call(const std::function<Variable()>& forward) {
    return experts_ ? shared_->call([&] { return experts_->call(forward); }) : shared_->call(forward);
  }
  /// As parallel::DistributedDataParallel::NoSync.
  struct NoSync {
    explicit NoSync(DataParallel& ddp) : shared(*ddp.shared_) {
      if (ddp.experts_) experts.emplace(*ddp.experts_);
    }
    parallel::DistributedDataParallel::NoSync shared;
    std::optional<parallel::DistributedDataParallel::NoSync> experts;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  /// Clips the norm of all gradients, those of other ranks' experts too; gives it back, the same on all ranks.
  double clip_grad_norm(double max_norm);

 private:
  Groups groups_;
  std::vector<Variable> common_, own_;  // parameters: of all ranks, of this rank's experts
  std::vector<int> hooks_;
  std::unique_ptr<parallel::DistributedDataParallel> shared_, experts_;  // the second only when experts are shared out
};

/// Names of the parameters and buffers of experts that only some ranks have.
std::set<std::string> expert_names(nn::Module& model);
/// How many ranks share the experts of a model; 1: each has all. Error when its layers differ.
int expert_ranks(nn::Module& model);

/// Experts in place of the MLPs (nn::Module::feed_forward_place()) of every `every`-th block (the last of each so
/// many), as wide as those, initialised like GPT-2's. `options`: width and inner are the model's.
void add_experts(nn::Module& model, Options options, int64_t every = 2,
                 const std::shared_ptr<dist::ProcessGroup>& group = nullptr);

}  // namespace lockstep::moe
