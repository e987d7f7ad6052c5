#pragma once
// DistributedDataParallel (Li et al., VLDB 2020): every rank holds a full replica of the model and computes on its own
// part of the batch; gradients are averaged over the ranks in buckets while backward is still running.
//
//   parallel::DistributedDataParallel ddp(model);                       // broadcasts rank 0's parameters
//   auto loss = cross_entropy(ddp.call([&] { return model(x); }), y);   // without buffers model(x) will do
//   loss.backward();                                                    // .grad is now the mean over all ranks
//   optimizer.step();
//
// Reproducibility: if all micro-batches have the same size, and the number of ranks and the accumulation are powers of
// two, parameters are bit-identical for every distribution of a step's micro-batches over ranks
// (dist/summation_tree.h), for any bucket size, with or without overlap.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/at_end.h"
#include "nn/module.h"
#include "parallel/buckets.h"

namespace lockstep::parallel {

/// A bucket as a communication hook sees it: the gradients of several parameters in one flat tensor.
struct Bucket {
  int index = 0;
  int count = 0;                   ///< number of buckets
  std::string label;               ///< "bucket 0 of 3, head.bias to hidden.weight", for tags
  Tensor gradients;                ///< flat; the hook must leave the mean over the ranks here
  std::vector<std::string> names;  ///< names of the parameters in the bucket
  std::vector<Tensor> parameters;  ///< the gradient of each parameter, a view into `gradients`
};

/// A communication hook replaces the all-reduce of a bucket. It starts the communication and returns a function that
/// completes it, which DDP calls at the end of backward. It may return an empty function.
using CommHook = std::function<std::function<void()>(Bucket& bucket, dist::ProcessGroup& group)>;

/// Options of DistributedDataParallel. They must be the same on all ranks.
struct DdpOptions {
  double bucket_mib = 25;  ///< capacity of a bucket; with this default the first bucket gets 1 MiB, as in PyTorch
  bool overlap = true;     ///< true: reduce while backward runs; false: when it ends. Same results.
  bool find_unused_parameters = false;  ///< true: parameters that a forward's graph does not reach count as zero
  bool static_graph = false;            ///< true: the first backward records which parameters are used, and how often
  bool broadcast_buffers = true;        ///< true: broadcast rank 0's buffers before every forward
  bool init_sync = true;                ///< true: the constructor broadcasts rank 0's parameters and buffers
  dist::Algorithm algorithm = dist::Algorithm::automatic;  ///< algorithm of the all-reduce
  CommHook hook;                                           ///< communicates a bucket; empty: all_reduce with op mean
};

/// Wraps a module for data parallel training. A Reducer (reducer.h) collects gradients; this class reduces them.
class DistributedDataParallel final : Buckets {
  void enter_no_sync() { reducer_->enter_no_sync(); }
  void leave_no_sync() { reducer_->leave_no_sync(); }

 public:
  using Options = DdpOptions;
  /// Collective. Checks that all ranks have the same parameters and options (the Error names the first difference and
  /// the ranks), then broadcasts rank 0's values. `group` defaults to dist::world(). `module` and `group` must outlive
  /// this object.
  explicit DistributedDataParallel(nn::Module& module, Options options = {}, dist::ProcessGroup* group = nullptr);
  DistributedDataParallel(const DistributedDataParallel&) = delete;

  nn::Module& module() { return module_; }        ///< the wrapped module
  dist::ProcessGroup& group() { return group_; }  ///< the ranks that hold replicas

  /// Runs a forward pass: synchronises buffers first, and with find_unused_parameters walks the graph of the returned
  /// variable. Inside no_sync() buffers are not synchronised.
  Variable call(const std::function<Variable()>& forward);
  /// Runs the module on `x` through call().
  Variable operator()(const Variable& x);

  /// Gradient accumulation. While a NoSync lives, backward only collects this rank's gradients. The first backward
  /// after it reduces the sum of all collected gradients, added in tree order. Until then .grad is a placeholder
  /// without memory: reading it (or an optimizer step) is an Error, clearing it (zero_grad) discards the gradients.
  using NoSync =
      While<DistributedDataParallel, &DistributedDataParallel::enter_no_sync, &DistributedDataParallel::leave_no_sync>;
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }  ///< begins the scope

  /// Join context for uneven inputs. A rank that has run out of data enters the destructor, which takes part in the
  /// other ranks' collectives with zeros until all have run out. Gradients are divided by the world size, or with
  /// divide_by_active by the number of ranks that still have data. At the end all ranks get the parameters and buffers
  /// of a rank that took the most steps. With throw_on_early_end, every rank throws an Error as soon as one rank has
  /// run out of data.
  class Join {
   public:
    /// Error if another Join of this model exists.
    explicit Join(DistributedDataParallel& ddp, bool divide_by_active = false, bool throw_on_early_end = false);
    ~Join() noexcept(false);
    Join(const Join&) = delete;

   private:
    DistributedDataParallel& ddp_;
    int exceptions_;  // uncaught exceptions when the scope began
  };
  /// Returns a Join. While it lives, ranks may have different numbers of inputs.
  [[nodiscard]] Join join(bool divide_by_active = false, bool throw_on_early_end = false) {
    return Join(*this, divide_by_active, throw_on_early_end);
  }

  /// Parameter names of each bucket, in the order of reduction.
  std::vector<std::vector<std::string>> buckets() const;

  /// The module's state with "module." before every name, as PyTorch saves it. load_state() takes names with and
  /// without that prefix.
  nn::State state();
  /// Loads a state like nn::Module::load_state(). strict: missing or unexpected names are an Error.
  nn::LoadReport load_state(const nn::State& state, bool strict = true);

 private:
  enum class Phase { none, buffers, backward };

  nn::Module& module_;
  const Options options_;
  dist::ProcessGroup& group_;
  std::vector<std::string> labels_, tags_;  // of buckets; tags of their collectives

  // Defined in ddp.cpp: the buckets, and the functions that the reducer calls
  void make_buckets(const std::vector<size_t>& order);
  std::function<void()> start(size_t bucket, const Tensor& sum) override;
  void ordered(const std::vector<size_t>& parameters) override { make_buckets(parameters); }
  void pass(Reducer::Pass moment, size_t unit) override;

  // Used by ddp_graph.cpp to find the parameters that get gradients, for find_unused_parameters and static_graph
  bool saw_forward_ = false;         // true: forwards ran through call(), and not all of their backwards have ended
  int forwards_ = 0;                 // forwards whose backward has not begun
  std::vector<bool> reachable_;      // true for the parameters that the last forward's output depends on
  bool counted_ = false;             // static_graph: true once expected_ is known
  std::vector<int> expected_;        // static_graph: gradients that each parameter gets in a backward
  std::vector<bool> used_anywhere_;  // true for the parameters that any rank used
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // output hooks may outlive this object and check it
  void look_at(const Variable& output);
  void expect_gradients();
  void check_pass();
  std::string unexpected(const Reducer::Parameter& p) override;
  std::vector<bool> agree_on_used() override;

  // Used by ddp_join.cpp, for ranks with different numbers of inputs (see Join)
  struct JoinState {
    bool divide_by_active = false, throw_on_early_end = false;
    int active = 0;      // number of ranks that still have data
    int authority = -1;  // a rank that has the newest parameters
  };
  std::optional<JoinState> join_;
  bool answering_ = false;  // true if this rank has no data left and only takes part in the other ranks' collectives
  /// The result of agree(), in which every rank tells its next phase: the ranks that have data left, and the phase that
  /// these ranks enter next.
  struct Agreed {
    std::vector<int> active;
    Phase phase;
  };
  Agreed agree(Phase mine);
  void shadow_until_all_ended();
  void shadow_backward();

  void sync_buffers();  // called before a forward
  void receive_buffers(int root);
};

/// Removes `prefix` from all names if every name has it; otherwise returns the state as it is.
nn::State without_wrapper(const nn::State& state, const std::string& prefix = "module.");

}  // namespace lockstep::parallel
