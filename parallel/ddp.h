#pragma once
// DistributedDataParallel (Li et al., VLDB 2020): every rank holds a full replica of the model and computes on its own
// part of the batch; gradients are averaged over the ranks in buckets while backward is still running.
//
//   parallel::DistributedDataParallel ddp(model);                       // broadcasts rank 0's parameters
//   auto loss = cross_entropy(ddp.call([&] { return model(x); }), y);   // or model(x), if it has no buffers
//   loss.backward();                                                    // .grad is now the mean over all ranks
//   optimizer.step();
//
// Reproducibility: if all micro-batches have the same size, and the number of ranks and the accumulation are powers of
// two, parameters are bit-identical for every distribution of a step's micro-batches over ranks
// (dist/summation_tree.h), for any bucket size, with or without overlap.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/at_end.h"
#include "dist/process_group.h"
#include "nn/module.h"

namespace lockstep::parallel {

/// A bucket as a communication hook sees it: the gradients of several parameters in one flat tensor.
struct GradBucket {
  int index = 0;
  int count = 0;                   ///< number of buckets
  std::string label;               ///< "bucket 0 of 3, head.bias to hidden.weight", for tags
  Tensor gradients;                ///< flat; the hook must leave the mean over the ranks here
  std::vector<std::string> names;  ///< names of the parameters in the bucket
  std::vector<Tensor> parameters;  ///< the gradient of each parameter, a view into `gradients`
};

/// A communication hook replaces the all-reduce of a bucket. It starts the communication and returns a function that
/// completes it, which DDP calls at the end of backward. It may return an empty function.
using CommHook = std::function<std::function<void()>(GradBucket& bucket, dist::ProcessGroup& group)>;

/// Options of DistributedDataParallel. They must be the same on all ranks.
struct DdpOptions {
  double bucket_mib = 25;  ///< capacity of a bucket; with this default the first bucket gets 1 MiB, as in PyTorch
  bool overlap = true;     ///< true: reduce while backward runs; false: when it ends. Same results.
  bool find_unused_parameters = false;  ///< true: parameters that a forward's graph does not reach count as zero
  bool static_graph = false;            ///< true: the first backward records which parameters are used, and how often
  bool broadcast_buffers = true;        ///< true: broadcast rank 0's buffers before every forward
  bool init_sync = true;                ///< true: the constructor broadcasts rank 0's parameters and buffers
  dist::Algorithm algorithm = dist::Algorithm::automatic;  ///< algorithm of the all-reduce
  CommHook hook = {};                                      ///< communicates a bucket; empty: all_reduce with op mean
};

/// Wraps a module for data parallel training. A Reducer (reducer.h) collects gradients; this class reduces them.
class DistributedDataParallel final {
  struct Impl;
  void enter_no_sync();
  void leave_no_sync();

 public:
  using Options = DdpOptions;
  /// Collective. Checks that all ranks have the same parameters and options (the Error names the first difference and
  /// the ranks), then broadcasts rank 0's values. `group` defaults to dist::world(). `module` and `group` must outlive
  /// this object.
  explicit DistributedDataParallel(nn::Module& module, Options options = {}, dist::ProcessGroup* group = nullptr);
  DistributedDataParallel(const DistributedDataParallel&) = delete;

  nn::Module& module();         ///< the wrapped module
  dist::ProcessGroup& group();  ///< the ranks that hold replicas

  /// Runs a forward pass: synchronises buffers first, and with find_unused_parameters walks the graph of the returned
  /// variable. Inside no_sync() buffers are not synchronised.
  Variable call(const std::function<Variable()>& forward);
  /// Runs the module on `x` through call().
  Variable operator()(const Variable& x);

  /// Gradient accumulation. While a NoSync lives, backward only collects this rank's gradients. The first backward
  /// after the scope reduces the sum of all collected gradients, added in tree order. Until then .grad is a placeholder
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
    Impl& ddp_;
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
  std::shared_ptr<Impl> impl_;  // output hooks may outlive this object, and check whether it still exists
};

/// Removes `prefix` from all names if every name has it; otherwise returns the state as it is.
nn::State without_wrapper(const nn::State& state, const std::string& prefix = "module.");

}  // namespace lockstep::parallel
