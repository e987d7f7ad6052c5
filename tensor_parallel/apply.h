#pragma once
// Tensor parallelism of a model as it is: a plan says by name what is cut how, apply() cuts the parameters in place and puts the communication in.
//
//   nn::GPT model(options);                                              // whole, on every rank
//   dist::Mesh mesh(dist::world(), {{"dp", 2}, {"tp", 4}});              // tp fastest: its ranks talk most
//   auto sliced = tensor_parallel::apply(model, tensor_parallel::gpt_plan(model), mesh.group("tp"));
//   optim::AdamW optimizer(model.parameters(), {});                      // after apply(): of slices
//   parallel::DistributedDataParallel ddp(model, {}, &mesh.group("dp"));
//   model.loss(tokens, targets).backward();                              // all ranks of a tp group with the same tokens
//   sliced.clip_grad_norm(1);
//   optimizer.step();
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dist/process_group.h"
#include "nn/gpt.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "tensor_parallel/slices.h"

namespace lockstep::tensor_parallel {

enum class Style {
  column,          ///< nn::Linear: its outputs are cut; whole: the output is gathered
  row,             ///< nn::Linear: its inputs are cut; whole: the input comes whole. Its bias is whole
  vocabulary,      ///< nn::Embedding: its rows. On the tokens of an nn::GPT: also the head that is tied to them. GPT's "head": the same
  heads,           ///< nn::MultiHeadAttention: heads, and with them in_proj by column and out_proj by row
  features,        ///< nn::Dropout: its input is a slice of the last dim (behind a column)
  sequence,        ///< any module: its input is a part of the sequence: dropouts drop as in the whole, gradients of its parameters are summed
  enter_sequence,  ///< the same, and its whole input is cut along the sequence (dim -2) first
  leave_sequence,  ///< the same, and its output is gathered along the sequence
};
const char* to_string(Style style);

struct Rule {
  /// Of names of modules (or the parameter "head" of a GPT): a name, or the last parts of one; * stands for anything. The first rule that fits a name counts.
  std::string pattern;
  Style style;
  bool whole = false;   ///< see column and row
  int64_t parts = 1;    ///< column: the weight is so many packed layers of one size, each of which is cut (q, k and v: 3)
};

struct Plan {
  std::vector<Rule> rules;
  bool sequence = false;  ///< columns, rows and heads take and give parts of the sequence
  bool overlap = true;    ///< see ColumnOptions
};
/// For nn::GPT: heads, MLP, tokens and head.
Plan gpt_plan(nn::GPT& model, bool sequence_parallel = false);
/// For one nn::TransformerBlock (a pipeline's stage has several). sequence_parallel: the block takes and gives a part of the sequence.
Plan block_plan(bool sequence_parallel = false);

/// What apply() did: which parameters are cut, and what must be done over the group. `module` and `group` must live longer.
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
  /// Null for parameters that every rank has whole.
  const Slice* find(const Variable& parameter) const;
  const Slice* find(const std::string& name) const;

  /// Of the gradients of the whole model (of those of its parameters that are among `parameters`, when given): slices of all ranks and, once, what all
  /// ranks have. The same bits on all. Called by all ranks.
  double grad_norm(const std::vector<Variable>& parameters = {}) const;
  /// optim::clip_grad_norm() with that norm.
  double clip_grad_norm(double max_norm) const;

  // Called by all ranks of the group. Names are those of the module before it was cut, tensors are whole: any number of ranks can load them.
  /// The module's state, copied.
  nn::State whole_state() const;
  /// Error as of Module::load_state(), and then nothing was changed.
  void load_whole_state(const nn::State& state) const;
  /// Runs `fn` with whole tensors in the module (which is not to be run meanwhile) and in the optimizer (when given): fn may read and load them. Drops gradients.
  void while_whole(optim::Optimizer* optimizer, const std::function<void()>& fn) const;
  /// For checkpoints::save(): a range of elements of every whole tensor, another one on each rank. `slices` has parameters or buffers of the module, or what an
  /// optimizer keeps for them, by the names that they have in the module; in the checkpoint `prefix` goes before.
  std::vector<checkpoints::Piece> pieces(const std::string& prefix, const nn::State& slices) const;
  /// For checkpoints::load(): runs `load` with such ranges to be filled, and copies what came to `slices`.
  void load_pieces(const std::string& prefix, const nn::State& slices, const std::function<void(const std::vector<checkpoints::Piece>&)>& load) const;

 private:
  friend TensorParallel apply(nn::Module&, const Plan&, dist::ProcessGroup&);
  nn::Module* module_ = nullptr;
  dist::ProcessGroup* group_ = nullptr;
  std::vector<Slice> slices_;
};

/// Called by all ranks of `group` before anything else holds the parameters' tensors (an optimizer's state, DDP, ZeRO). Copies rank 0's values to all, cuts them.
/// Errors, on all ranks and before anything is changed: a pattern that nothing matches, a module or parameter that has no such form or is cut twice, heads or
/// widths that the ranks do not divide.
TensorParallel apply(nn::Module& module, const Plan& plan, dist::ProcessGroup& group);

}  // namespace lockstep::tensor_parallel
