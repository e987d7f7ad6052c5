#pragma once
// A model in units and shards, at this rank: what all stages, the optimizer and checkpoints look at. Not for users.
#include <map>
#include <string>
#include <vector>

#include "dist/summation_tree.h"
#include "parallel/agreement.h"
#include "zero/zero.h"

namespace lockstep::zero {

struct Parameter {
  std::string name;
  Variable variable;
  optim::Optimizer* optimizer = nullptr;  // none: frozen
  int group = 0;                          // of the optimizer
  dist::ProcessGroup* ranks = nullptr;    // that have it
  size_t unit = SIZE_MAX, place = 0;      // no unit: frozen, below stage 3
  int64_t steps = 0;                      // updates so far
  int64_t first_block = 0;                // of its norm, among those of all
  bool trains() const { return optimizer != nullptr; }
};

/// What this rank owns of a parameter; with a ratio of offload below 1 one parameter may have two.
struct Piece {
  size_t parameter = 0;
  dist::Range range;  // of the parameter's elements
  int64_t at = 0;     // where it starts in the shard
  // What the optimizer keeps for it, ask ShardedOptimizer::kept()
  Offload home = Offload::none;              // nvme: in regions of the unit
  std::vector<std::string> keys = {};        // nvme: their names
  bool started = false;                      // there is something
  std::map<std::string, Tensor> state = {};  // flat, of range.size() elements; "master" for 16-bit parameters
};

struct Unit : PlannedUnit {
  std::string tag;                      // of its collectives: ranks that disagree are told
  dist::ProcessGroup* group = nullptr;  // of the ranks that have its parameters
  bool trains = true;
  DType dtype = f32, gradient_dtype = f32;
  std::vector<Piece> pieces;  // of trained parameters

  Tensor weights;         // from stage 1 on: flat, the parameters are views of it
  Tensor part;            // of the last reduction: the sum over ranks of what this rank owns
  dist::TreeSum reduced;  // of those before it
  dist::Work published;   // what was updated is shared
};

inline Tensor flat(const Tensor& tensor) { return tensor.view({tensor.numel()}); }

class Shards {
 public:
  Shards(nn::Module& module, std::vector<optim::Optimizer*> optimizers, const ZeroOptions& options,
         dist::ProcessGroup& group);
  Shards(const Shards&) = delete;

  size_t index_of(const Variable& variable) const;
  int rank() const { return group.rank(); }
  bool is_cut() const { return options.stage > 0; }  // units are, into a shard for each rank
  int shard_number(const Unit& unit) const { return is_cut() ? unit.group->rank() : 0; }
  /// This rank's, of the whole.
  dist::Range shard(const Unit& unit) const { return unit.layout.range(shard_number(unit)); }
  /// Starts to make unit.weights whole everywhere, from each rank's part of it.
  dist::Work share(const Unit& unit, const Tensor& part) const;
  bool is_spread(const Parameter& p) const { return p.ranks != &group; }
  [[noreturn]] void fail_everywhere(const std::string& message) const { parallel::fail_everywhere(group, message); }
  /// What fails at a disk fails at all ranks.
  template <class Fn> auto on_files(Fn&& fn) const {
    std::string message;
    try {
      return fn();
    } catch (const Error& error) { message = error.what(); }
    fail_everywhere(message);
  }

  nn::Module& module;
  const std::vector<optim::Optimizer*> optimizers;
  const ZeroOptions options;
  dist::ProcessGroup& group;
  Device device = cpu;                // of all parameters (cpu for any of the CPU's); what is offloaded is on the CPU
  std::vector<Parameter> parameters;  // of the module, in the order of fields()
  std::vector<Unit> units;            // of units.h, in the order in which gradients are expected
  int64_t norm_blocks_of_all = 0;

 protected:
  /// All ranks have the same model and options, and start from rank 0's.
  void agree();
  void plan();
  Tensor value_of(const Parameter& p);  // whole, also when it was built in an Init scope

 private:
  void check_spread() const;
};

}  // namespace lockstep::zero
