#pragma once
// DistributedDataParallel (Li et al., VLDB 2020): every rank holds the whole model and sees its own data; gradients are
// averaged in buckets while backward still runs.
//
//   parallel::DistributedDataParallel ddp(model);                       // same parameters everywhere from here on
//   auto loss = cross_entropy(ddp.call([&] { return model(x); }), y);   // or model(x) when there are no buffers
//   loss.backward();                                                    // .grad holds the mean over all ranks then
//   optimizer.step();
//
// Bits: with micro-batches that are all of one size and powers of two of ranks and of accumulation, parameters are the
// same bit for bit however a step's micro-batches are cut over ranks (dist/summation_tree.h), for any bucket size,
// overlap or not.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/module.h"
#include "parallel/reducer.h"
#include "tensor/at_end.h"

namespace lockstep::parallel {

/// One bucket as a communication hook sees it: flat gradients of some parameters.
struct Bucket {
  int index = 0;
  int count = 0;      ///< number of buckets
  std::string label;  ///< "bucket 0 of 3, head.bias to hidden.weight", for tags
  Tensor gradients;   ///< flat; the hook leaves the mean over ranks here
  std::vector<std::string> names;
  std::vector<Tensor> parameters;  ///< gradient of each parameter, views into `gradients`
};

/// Replaces the all-reduce of a bucket: starts it, and gives back what finishes it, at the end of backward.
using CommHook = std::function<std::function<void()>(Bucket& bucket, dist::ProcessGroup& group)>;

struct DdpOptions {
  double bucket_mib = 25;  ///< first bucket 1 MiB when this is the default, as in PyTorch
  bool overlap = true;     ///< reduce while backward runs; off: all buckets at the end. Same bits.
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool broadcast_buffers = true;  ///< rank 0's buffers before every forward
  bool init_sync = true;
  dist::Algorithm algorithm = dist::Algorithm::automatic;
  CommHook hook;  ///< empty: mean by all_reduce
};

/// The reducer, with DDP's policy.
class DistributedDataParallel final : Reducer::Policy {
  void enter_no_sync() { reducer_->enter_no_sync(); }
  void leave_no_sync() { reducer_->leave_no_sync(); }

 public:
  using Options = DdpOptions;
  /// Checks that all ranks have the same parameters (Error names the first that differs and the ranks), and copies rank
  /// 0's values to all. `group`: default dist::world().
  explicit DistributedDataParallel(nn::Module& module, Options options = {}, dist::ProcessGroup* group = nullptr);
  DistributedDataParallel(const DistributedDataParallel&) = delete;

  nn::Module& module() { return module_; }
  dist::ProcessGroup& group() { return group_; }

  /// Runs a forward: synchronises buffers first and, with find_unused_parameters, looks at what `forward` returned.
  Variable call(const std::function<Variable()>& forward);
  Variable operator()(const Variable& x);

  /// While this lives, backward collects the gradients of this rank's micro-batches; the first backward after it
  /// reduces the sum of all, added in tree order. Until then .grad is a placeholder whose memory is released: reading
  /// it (or an optimizer step) is an Error, clearing it (zero_grad) forgets what was collected.
  using NoSync =
      While<DistributedDataParallel, &DistributedDataParallel::enter_no_sync, &DistributedDataParallel::leave_no_sync>;
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  /// Uneven inputs: while this lives, ranks that run out of data keep answering the others' collectives (in its
  /// destructor), with zeros. Gradients are divided by the world size, or (divide_by_active) by the number of ranks
  /// that still have data. At the end all ranks get the parameters and buffers of one that worked longest.
  /// throw_on_early_end: instead, every rank throws an Error as soon as one has run out.
  class Join {
   public:
    explicit Join(DistributedDataParallel& ddp, bool divide_by_active = false, bool throw_on_early_end = false);
    ~Join() noexcept(false);
    Join(const Join&) = delete;

   private:
    DistributedDataParallel& ddp_;
    int exceptions_;  // on their way when this was made
  };
  [[nodiscard]] Join join(bool divide_by_active = false, bool throw_on_early_end = false) {
    return Join(*this, divide_by_active, throw_on_early_end);
  }

  /// Names in each bucket, in the order they are reduced.
  std::vector<std::vector<std::string>> buckets() const;

  /// The module's state with "module." before every name, as PyTorch saves it; load_state() takes both forms.
  nn::State state();
  nn::LoadReport load_state(const nn::State& state, bool strict = true);

 private:
  enum class Phase { none, buffers, backward };

  nn::Module& module_;
  const Options options_;
  dist::ProcessGroup& group_;
  std::optional<Reducer> reducer_;  // in the order of fields()
  std::vector<Bucket> buckets_;     // its units
  std::vector<std::string> tags_;   // of their collectives

  // ddp.cpp: the policy
  void make_buckets(const std::vector<size_t>& order);
  Tensor memory(size_t bucket) override { return reducer_->units[bucket].gradients.own_memory(); }
  std::function<void()> start(size_t bucket, const Tensor& sum) override;
  void finished() override;
  void forgotten() override;
  void ordered(const std::vector<size_t>& parameters) override { make_buckets(parameters); }
  void pass_begins() override;

  // ddp_graph.cpp: which parameters get gradients, with find_unused_parameters and static_graph
  bool saw_forward_ = false;  // what the forwards since the last backward depend on
  int forwards_ = 0;
  std::vector<bool> reachable_;
  bool counted_ = false;  // static_graph: how many gradients each parameter gets,
  std::vector<int> expected_;
  std::vector<bool> used_anywhere_;                        // and whether any rank uses it
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // hooks on outputs may outlive this
  void look_at(const Variable& output);
  void expect_gradients();
  void check_pass() override;
  std::string unexpected(const Reducer::Parameter& p) override;
  std::vector<bool> agree_on_used();

  // ddp_join.cpp
  struct JoinState {
    bool divide_by_active = false, throw_on_early_end = false;
    int active = 0;      // ranks that still have data
    int authority = -1;  // one that has the newest parameters
  };
  std::optional<JoinState> join_;
  bool answering_ = false;  // for other ranks: this one's data has ended
  /// Ranks tell each other which collectives come next; gives back which of them have data.
  struct Agreed {
    std::vector<int> active;
    Phase phase;
  };
  Agreed agree(Phase mine);
  void shadow_until_all_ended();
  void shadow_backward();

  std::vector<Tensor> module_buffers() const;
  void sync_buffers();  // before a forward
  void receive_buffers(int root);
};

/// Takes one wrapper's prefix off, when every name has it.
nn::State without_wrapper(const nn::State& state, const std::string& prefix = "module.");

}  // namespace lockstep::parallel
