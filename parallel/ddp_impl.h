#pragma once
// What DistributedDataParallel holds: the reducer, with DDP's policy. ddp.cpp, ddp_graph.cpp, ddp_state.cpp and
// join.cpp share it. Not for users.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/ddp.h"
#include "parallel/reducer.h"

namespace lockstep::parallel {

struct DistributedDataParallel::Impl final : Reducer::Policy {
  Impl(nn::Module& module, Options options, dist::ProcessGroup& group);

  struct JoinState {
    bool divide_by_active = false, throw_on_early_end = false;
    int active = 0;      // ranks that still have data
    int authority = -1;  // one that has the newest parameters
  };
  enum class Phase { none, buffers, backward };

  nn::Module& module;
  const Options options;
  dist::ProcessGroup& group;
  std::optional<Reducer> reducer;  // of those that require grad, in the order of fields()
  std::vector<Bucket> buckets;     // its units
  std::vector<std::string> tags;   // of their collectives
  std::vector<Tensor> means;       // what was reduced
  std::optional<JoinState> join;
  bool answering = false;  // for other ranks: this one's data has ended

  // ddp.cpp: the policy
  void make_buckets(const std::vector<size_t>& order);
  Tensor memory(size_t bucket) override { return reducer->units[bucket].gradients.own_memory(); }
  std::function<void()> start(size_t bucket, const Tensor& sum) override;
  void finished() override;
  void forgotten() override;
  void ordered(const std::vector<size_t>& parameters) override { make_buckets(parameters); }
  void pass_begins() override;

  // ddp_graph.cpp: which parameters get gradients, with find_unused_parameters and static_graph
  bool saw_forward = false;  // what the forwards since the last backward depend on
  int forwards = 0;
  std::vector<bool> reachable;
  bool counted = false;  // static_graph: how many gradients each parameter gets,
  std::vector<int> expected;
  std::vector<bool> used_anywhere;                        // and whether any rank uses it
  std::shared_ptr<int> alive = std::make_shared<int>(0);  // hooks on outputs may outlive this
  void look_at(const Variable& output);
  void expect_gradients();
  void check_pass() override;
  std::string unexpected(const Reducer::Parameter& p) override;
  std::vector<bool> agree_on_used();

  // join.cpp: ranks tell each other which collectives come next; gives back which of them have data.
  struct Agreed {
    std::vector<int> active;
    Phase phase;
  };
  Agreed agree(Phase mine);
  void shadow_until_all_ended();
  void shadow_backward();

  // ddp_state.cpp
  std::vector<Tensor> module_buffers() const;
  void sync_buffers();  // before a forward
  void receive_buffers(int root);
};

}  // namespace lockstep::parallel
