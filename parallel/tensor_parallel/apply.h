#pragma once
// Tensor parallelism for an unmodified model: its fields() say how each layer can be cut (nn/cut.h); apply() replaces
// the parameters by shards, in place, and inserts the communication.
//
//   nn::GPT model(options);                                              // the whole model, on every rank
//   dist::GroupMesh mesh(dist::world(), {{"dp", 2}, {"tp", 4}});              // tp fastest: its ranks communicate most
//   auto sharded = tensor_parallel::apply(model, mesh.group("tp"));
//   optim::AdamW optimizer(model.parameters(), {});                      // after apply(): it must see the shards
//   parallel::DistributedDataParallel ddp(model, {}, &mesh.group("dp"));
//   model.loss(tokens, targets).backward();                              // the same tokens on all ranks of a tp group
//   sharded.clip_grad_norm(1);
//   optimizer.step();
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/module.h"
#include "parallel/tensor_parallel/shards.h"

namespace lockstep::tensor_parallel {

/// How to shard a module over the ranks. Rules count before what the model's fields() say.
struct Rule {
  /// A module's name or its last components ("mlp.up"); * matches any characters. With cut::features it may also be the
  /// name of a parameter. The first rule that matches a name counts.
  std::string pattern;
  nn::Cut cut;
};

/// Options of apply(); the same on all ranks.
struct TensorParallelOptions {
  /// true: sequence parallelism (Korthikanti et al., 2022): layers without sharded weights work on parts of the
  /// sequence.
  bool sequence = false;
  /// With `sequence`, for parameters that see only a part of the sequence. true: all-reduce their gradients as soon as
  /// the gradients arrive; false: the caller sums them over the ranks, see partial().
  bool sum = true;
  bool overlap = true;  ///< overlap communication with products; see ColumnOptions, also for `chunks`
  int64_t chunks = 0;
  std::vector<Rule> rules = {};  ///< take precedence over the model's fields()
};

/// The result of apply(): lists the sharded parameters, and computes the norm of the sharded model's gradients.
/// The module and the group must outlive this object.
class TensorParallel {
 public:
  /// A parameter of which this rank keeps a shard, and how it is sharded.
  struct Shard {
    std::string name;
    Variable parameter;
    ShardLayout cut;
  };
  nn::Module& module() const { return *module_; }               ///< the model that was cut
  dist::ProcessGroup& group() const { return *group_; }         ///< the tensor-parallel ranks
  const std::vector<Shard>& shards() const { return shards_; }  ///< all cut parameters
  /// Names of parameters that are whole on every rank, but whose gradient covers only this rank's part of the sequence.
  const std::vector<std::string>& partial() const { return partial_; }
  /// The shard of a parameter; null if every rank has the whole parameter.
  const Shard* find(const Variable& parameter) const;

  /// Norm of the gradients of the whole model: the shards of all ranks, and whole parameters once. Bit-identical on all
  /// ranks. Collective.
  double grad_norm() const;
  /// Clips like optim::clip_grad_norm(), by the norm that grad_norm() returns. Collective.
  double clip_grad_norm(double max_norm) const;

 private:
  friend TensorParallel apply(nn::Module&, dist::ProcessGroup&, const TensorParallelOptions&);
  nn::Module* module_ = nullptr;
  dist::ProcessGroup* group_ = nullptr;
  std::vector<Shard> shards_;
  std::vector<std::string> partial_;
};

/// Shards a model over the ranks of `group`. Collective. Must be called before anything else holds the parameters'
/// tensors (an optimizer's state, DDP, ZeRO). Broadcasts rank 0's values and keeps this rank's shards. If the model was
/// built empty (nn/init.h), fill() makes the shards later. A parameter shared by several modules is
/// sharded if all of these modules ask for the same shards.
///
/// Errors, on all ranks and before anything is changed: nothing in the model is sharded; a pattern matches nothing; a
/// module or parameter cannot be sharded that way, or would be sharded twice; the ranks do not divide the heads or
/// widths.
TensorParallel apply(nn::Module& module, dist::ProcessGroup& group, const TensorParallelOptions& options = {});

}  // namespace lockstep::tensor_parallel
