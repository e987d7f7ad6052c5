#pragma once
// Tensor parallelism of a model as it is: its fields() say what is cut how (nn/cut.h), apply() cuts the parameters in
// place and puts the communication in.
//
//   nn::GPT model(options);                                              // whole, on every rank
//   dist::Mesh mesh(dist::world(), {{"dp", 2}, {"tp", 4}});              // tp fastest: its ranks talk most
//   auto sliced = tensor_parallel::apply(model, mesh.group("tp"));
//   optim::AdamW optimizer(model.parameters(), {});                      // after apply(): of slices
//   parallel::DistributedDataParallel ddp(model, {}, &mesh.group("dp"));
//   model.loss(tokens, targets).backward();                              // ranks of a tp group with the same tokens
//   sliced.clip_grad_norm(1);
//   optimizer.step();
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/module.h"
#include "parallel/tensor/slices.h"

namespace lockstep::tensor_parallel {

/// What a model that cannot be edited would say in its fields(), or another Cut than it says there.
struct Rule {
  /// Of names of modules (cut::features: of parameters, too): a name, or the last parts of one; * stands for anything.
  /// The first rule that fits a name counts.
  std::string pattern;
  nn::Cut cut;
};

struct Options {
  /// Columns, rows and heads take and give parts of the sequence, and so does what is cut by tokens.
  bool sequence = false;
  /// Of a sequence: ranks add up the gradients of what sees a part of it as they arrive; false: see partial().
  bool sum = true;
  bool overlap = true;  ///< see ColumnOptions, also for chunks
  int64_t chunks = 0;
  std::vector<Rule> rules = {};
};

/// What apply() did: which parameters are cut, and what must be done over the group. Module and group live longer.
class TensorParallel {
 public:
  struct Slice {
    std::string name;
    Variable parameter;
    Cut cut;
  };
  nn::Module& module() const { return *module_; }
  dist::ProcessGroup& group() const { return *group_; }
  const std::vector<Slice>& slices() const { return slices_; }
  /// Of parameters that are whole, but whose gradients each rank has a part of.
  const std::vector<std::string>& partial() const { return partial_; }
  /// Null for parameters that every rank has whole.
  const Slice* find(const Variable& parameter) const;

  /// Of the gradients of the whole model: slices of all ranks and, once, what all ranks have. The same bits on all.
  /// Called by all ranks.
  double grad_norm() const;
  /// optim::clip_grad_norm() with that norm.
  double clip_grad_norm(double max_norm) const;

 private:
  friend TensorParallel apply(nn::Module&, dist::ProcessGroup&, const Options&);
  nn::Module* module_ = nullptr;
  dist::ProcessGroup* group_ = nullptr;
  std::vector<Slice> slices_;
  std::vector<std::string> partial_;
};

/// Called by all ranks of `group` before anything else holds the parameters' tensors (an optimizer's state, DDP, ZeRO).
/// Copies rank 0's values to all, cuts them (of a model that was built empty: fill() makes slices). A parameter that
/// several modules share is cut when all of them say the same. Errors, on all ranks and before anything is changed: a
/// model of which nothing is cut, a pattern that nothing matches, a module or parameter that has no such form or is cut
/// twice, heads or widths that the ranks do not divide.
TensorParallel apply(nn::Module& module, dist::ProcessGroup& group, const Options& options = {});

}  // namespace lockstep::tensor_parallel
