#pragma once
// DistributedDataParallel (Li et al., VLDB 2020): every rank holds the whole model and sees its own data; gradients are
// averaged in buckets while backward still runs.
//
//   parallel::DistributedDataParallel ddp(model);        // same parameters everywhere from here on
//   auto loss = cross_entropy(ddp.call([&] { return model(x); }), y);   // or model(x) directly when there are no
//   buffers loss.backward();                                     // .grad holds the mean over all ranks when it returns
//   optimizer.step();
//
// Bits: with micro-batches that are all of one size and powers of two of ranks and of accumulation, parameters are the
// same bit for bit however a step's micro-batches are cut over ranks (dist/summation_tree.h), for any bucket size,
// overlap or not.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/module.h"

namespace lockstep::parallel {

/// One bucket as a communication hook sees it: flat gradients of some parameters.
struct Bucket {
  int index = 0;
  int count = 0;     ///< number of buckets
  Tensor gradients;  ///< flat; the hook leaves the mean over ranks here
  std::vector<std::string> names;
  std::vector<Tensor> parameters;  ///< gradient of each parameter, views into `gradients`
};

/// Replaces the all-reduce of a bucket: starts it, and gives back what finishes it (called before the optimizer may
/// read).
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
  /// Names of parameters and buffers that are left alone: not compared, copied or reduced (experts, of which ranks have
  /// different ones).
  std::function<bool(const std::string& name)> ignore = {};
};

class DistributedDataParallel {
 public:
  using Options = DdpOptions;
  /// Checks that all ranks have the same parameters (Error names the first that differs and the ranks), and copies rank
  /// 0's values to all. `group`: default dist::world().
  explicit DistributedDataParallel(nn::Module& module, Options options = {}, dist::ProcessGroup* group = nullptr);
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;

  nn::Module& module();
  dist::ProcessGroup& group();

  /// Runs a forward: synchronises buffers first and, with find_unused_parameters, looks at what `forward` returned.
  Variable call(const std::function<Variable()>& forward);
  Variable operator()(const Variable& x);

  /// While this lives, backward collects the gradients of this rank's micro-batches; the first backward after it
  /// reduces the sum of all, added in tree order. Until then .grad is a placeholder whose memory is released: reading
  /// it (or an optimizer step) is an Error, clearing it (zero_grad) forgets what was collected.
  class NoSync {
   public:
    explicit NoSync(DistributedDataParallel& ddp);
    ~NoSync();
    NoSync(const NoSync&) = delete;

   private:
    DistributedDataParallel& ddp_;
  };
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

  /// The module's state with "module." before every name, as PyTorch saves a wrapped model; load_state() takes both
  /// forms.
  nn::State state();
  nn::LoadReport load_state(const nn::State& state, bool strict = true);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Takes one wrapper's prefix off, when every name has it; `stripped` tells.
nn::State without_wrapper(const nn::State& state, const std::string& prefix = "module.", bool* stripped = nullptr);

}  // namespace lockstep::parallel
