#pragma once
// What DistributedDataParallel holds; ddp.cpp and join.cpp share it. Not for users.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/buckets.h"
#include "parallel/ddp.h"

namespace lockstep::parallel {

struct DistributedDataParallel::Impl {
  Impl(nn::Module& module, Options options, dist::ProcessGroup& group);
  ~Impl();

  struct Parameter {
    std::string name;
    Variable variable;
    size_t bucket = 0, place = 0;
    int seen = 0;          // gradients that arrived in this pass
    int expected = 1;      // static_graph: as many as in the first pass
    bool absent = false;   // known to get none in this pass
    bool used = false;     // had a gradient in a micro-batch of this step
    bool held = false;     // its gradients lie in the tree; .grad holds the placeholder
    bool stashed = false;  // the placeholder was taken away because a gradient comes
    int hooks[2] = {0, 0};
  };
  struct Slot {  // a bucket at work
    FlatGradients gradients;
    Bucket bucket;
    std::string tag;
    std::vector<size_t> members;
    int waiting = 0;             // parameters whose gradient is still to come in this pass
    std::function<void()> finish;  // what ends the reduction that was started
  };
  struct JoinState {
    bool divide_by_active = false, throw_on_early_end = false;
    int active = 0;      // ranks that still have data
    int authority = -1;  // one that has the newest parameters
  };
  enum class Phase { none, buffers, backward };

  nn::Module& module;
  const Options options;
  dist::ProcessGroup& group;
  std::vector<Parameter> parameters;  // those that require grad, in the order of fields()
  std::vector<Slot> slots;            // in the order they are reduced
  int no_sync_depth = 0;
  std::optional<JoinState> join;

  // A backward pass
  bool in_pass = false, syncing = false;
  size_t next_launch = 0;
  std::vector<size_t> arrivals;   // parameters in the order of their gradients, until the buckets are rebuilt
  bool rebuilt = false, counted = false /* static_graph */;
  std::vector<bool> used_anywhere;  // static_graph: by any rank
  // What the forwards since the last backward depend on (find_unused_parameters)
  bool saw_forward = false;
  int forwards = 0;
  std::vector<bool> reachable;
  std::shared_ptr<int> alive = std::make_shared<int>(0);  // hooks on outputs may outlive this

  bool is_placeholder(const Tensor& grad) const;
  bool finds_unused() const { return options.find_unused_parameters || options.static_graph; }
  void make_slots(const std::vector<size_t>& order);
  void before_add(size_t i);
  void arrived(size_t i);
  void begin_pass();
  void end_pass();
  void abandon_pass() noexcept;
  void notice_cleared();
  void settle(Slot& slot);
  void launch();
  void check_graph();
  void reduce_all();       // everything that is not on its way yet, then waits, and sets .grad
  std::vector<bool> agree_on_used();
  void rebuild();
  void look_at(const Variable& output);
  std::vector<nn::NamedBuffer> buffers() const {
    auto all = module.named_buffers();
    if (options.ignore) std::erase_if(all, [this](const nn::NamedBuffer& b) { return options.ignore(b.name); });
    return all;
  }
  void sync_buffers();               // before a forward
  void receive_buffers(int root);
  [[noreturn]] void fail_everywhere(const std::string& message);
  std::string list(const std::vector<size_t>& indices) const;

  // join.cpp: ranks tell each other which collectives come next; gives back which of them have data.
  struct Agreed { std::vector<int> active; Phase phase; };
  Agreed agree(Phase mine);
  void shadow_until_all_ended();
  void shadow_backward();

 private:
  Tensor placeholder(const Parameter& p) const;
  Tensor placeholder_;  // emptied storage: reading it is an error
};

}  // namespace lockstep::parallel
