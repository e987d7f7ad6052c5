#pragma once
// What all stages share; stage 0 as it stands: every rank keeps everything, and gradients are all-reduced. Each stage
// adds one thing:
//
//   Stage   gradients of parallel/reducer.h, step            stage.cpp, step.cpp
//   Stage1  optimizer state in parts                         stage1.cpp
//   Stage2  and gradients                                    stage2.cpp
//   Stage3  and parameters                                   stage3.cpp
//
// Not for users: they see zero.h.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dist/summation_tree.h"
#include "parallel/agreement.h"
#include "parallel/reducer.h"
#include "tensor/step_batch.h"
#include "zero/zero.h"

namespace lockstep::zero {

class ShardedOptimizer;
class ShardStore;

struct Parameter {
  std::string name;
  Variable variable;
  optim::Optimizer* optimizer = nullptr;  // none: frozen
  int group = 0;                          // of the optimizer
  dist::ProcessGroup* ranks = nullptr;    // that have it
  size_t unit = SIZE_MAX, place = 0;      // no unit: frozen, below stage 3
  int64_t steps = 0;                      // updates so far
  int64_t first_block = 0;                // of its norm, among those of all
  uint32_t seen = 0;                      // optim::ParameterState::seen
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
  std::set<std::string> fresh = {};  // names in it that this step has made: of its later tiles they are not there
};

struct Unit : PlannedUnit {
  std::string tag;                      // of its collectives: ranks that disagree are told
  dist::ProcessGroup* group = nullptr;  // of the ranks that have its parameters
  bool trains = true;
  int64_t first = 0;  // of its parameters, among those of all units
  DType dtype = f32, gradient_dtype = f32;
  std::vector<Piece> pieces;  // of trained parameters

  Tensor weights;         // from stage 1 on: flat, the parameters are views of it
  Tensor part;            // of the last reduction: the sum over ranks of what this rank owns
  dist::TreeSum reduced;  // of those before it
  dist::Work published;   // what was updated is shared
};

/// What of a state's tensor of that name belongs to these elements: as many, a number for each block, or all that a
/// rule of whole parameters keeps.
inline dist::Range entries(const Parameter& p, const std::string& key, dist::Range elements) {
  if (p.optimizer && !p.optimizer->is_elementwise())
    return {0, elements.size() > 0 ? numel_of(p.optimizer->state_shape(key, p.variable.shape())) : 0};
  const int64_t block = optim::is_per_block(key) ? p.optimizer->block() : 1;
  return {elements.begin / block, (elements.end + block - 1) / block};
}

inline Tensor flat(const Tensor& tensor) { return tensor.view({tensor.numel()}); }

/// What a graph does in step().
struct CapturedStep {
  std::vector<bool> used;     // parameters
  std::vector<Tensor> parts;  // gradients, of all units
  Tensor own_bad;             // Stage::own_bad_
  bool has_norm = false;
};

class Stage : public parallel::Reducer::Policy {
 public:
  Stage(nn::Module& module, std::vector<optim::Optimizer*> optimizers, const ZeroOptions& options,
        dist::ProcessGroup& group);
  ~Stage() override;
  Stage(const Stage&) = delete;
  /// The second half of the constructor, which asks the stage.
  void build();

  // The model in units and shards, at this rank.
  nn::Module& module;
  const std::vector<optim::Optimizer*> optimizers;
  const ZeroOptions options;
  dist::ProcessGroup& group;
  Device device = cpu;                // of all parameters (cpu for any of the CPU's); what is offloaded is on the CPU
  std::vector<Parameter> parameters;  // of the module, in the order of fields()
  std::vector<Unit> units;            // of units.h, in the order in which gradients are expected
  int64_t norm_blocks_of_all = 0;
  std::optional<StepBatch> batch;  // of the steps of a CUDA device
  bool scaled = true;              // `part` holds gradients that step() has multiplied, where they are wide

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

  StepReport step(const StepOptions& o);
  double scale_of(const StepOptions& o) const;
  void before_replay(const StepOptions& o, const std::shared_ptr<const CapturedStep>& of);
  StepReport after_replay(const StepOptions& o, const std::shared_ptr<const CapturedStep>& of);
  const std::shared_ptr<const CapturedStep>& captured() const { return captured_; }
  void forget() { reducer_->forget(); }  // all gradients
  virtual void enter_no_sync() { reducer_->enter_no_sync(); }
  void leave_no_sync() { reducer_->leave_no_sync(); }
  void pause(bool wanted);

  virtual void pin(size_t /*unit*/) {}
  virtual void unpin(size_t /*unit*/) {}
  virtual bool is_pinned(size_t /*unit*/) const { return false; }
  /// Everybody takes a rank's values of these parameters, which are pinned.
  void take_from(int rank, const std::vector<size_t>& parameters);
  virtual void register_external(nn::Module&, const Variable&) {}
  virtual int hooks_on(const nn::Module&) const { return 0; }
  virtual void release() {}

  // state.cpp
  std::vector<StatePiece> state(bool to_load, bool make);
  std::map<std::string, double> numbers() const;
  void load_numbers(const std::map<std::string, double>& numbers);
  void loaded(bool masters);

  // What the optimizer over shards asks.
  virtual const ShardStore* store() const { return nullptr; }  // stage 3: of parameters
  virtual Tensor weight(Unit& unit, const Piece& piece);       // the parameter's elements that a piece owns, flat
  Tensor gradient(Unit& unit, int64_t at, int64_t n, double scale) const;  // of elements of the shard, in f32
  virtual void publish(Unit&) {}                                           // starts to share what was updated
  void see();  // masters have all that was written to parameters

 protected:
  // What a stage decides.
  virtual void prepare() {}                    // the units are there
  virtual void place(Unit& unit);              // puts the parameters where they are to live
  static Tensor value_of(const Parameter& p);  // whole, also when it was built in an Init scope
  // And as the reducer's policy, from stage 0: all_reduce. What is waited for leaves the sum of all ranks in unit.part.
  Tensor memory(size_t unit) override;
  std::function<void()> start(size_t unit, const Tensor& sum) override;
  void filled(size_t unit, const Tensor& flat) override;
  void forgotten() override;
  void ordered(const std::vector<size_t>& parameters) override { reducer_->reorder(parameters); }

  std::optional<parallel::Reducer> reducer_;  // its parameters and units have the numbers of those here
  std::unique_ptr<ShardedOptimizer> optimizer_;

 private:
  // shards.cpp
  void check_spread() const;
  void agree();
  void plan();

  void listen();

  // step.cpp
  void check_unpinned() const;
  void written();
  std::vector<bool> agree_on_used();
  int64_t first_bad(bool looks_at_sums) const;
  bool check_finite(const StepOptions& o, const Tensor& squares, StepReport& report);
  bool has_all_squares() const;
  Tensor squares_of_blocks(double scale, const std::vector<bool>& used);
  double norm(const StepOptions& o, const Tensor& squares);

  // recorded_step.cpp
  void record(const StepOptions& o, const std::vector<bool>& used);
  std::shared_ptr<const CapturedStep> captured_;  // the last

  // state.cpp
  Piece all_owned(const Parameter& p) const;  // at this rank

  std::vector<bool> used_here_, used_anywhere_;  // in the last step that ran as it is
  // For each parameter of each unit, 1 where this rank's own gradients have NaN or infinity, since the last step. Where
  // they are; none: nobody has looked.
  Tensor own_bad_;
  int64_t steps_ = 0;
};

/// Optimizer state in parts.
class Stage1 : public Stage {
 public:
  using Stage::Stage;
  void publish(Unit& unit) override;

 protected:
  void place(Unit& unit) override;
  void move_into_weights(Unit& unit);  // its parameters become views of unit.weights, with their values
  dist::Work reduce_to_owners(const Unit& unit, const Tensor& whole, const Tensor& part);  // which is this rank's
  std::function<void()> start(size_t unit, const Tensor& sum) override;
};

/// And gradients.
class Stage2 : public Stage1 {
 public:
  using Stage1::Stage1;
  void enter_no_sync() override;

 protected:
  Tensor memory(size_t unit) override;
  std::function<void()> start(size_t unit, const Tensor& sum) override;
  void forgotten() override;

 private:
  struct Lent {  // memory that units take turns in
    Tensor bytes;
    size_t unit = SIZE_MAX;
    uint64_t since = 0;
  };
  std::vector<Lent> pool_;
  uint64_t turns_ = 0;
};

/// The loss scaler hears how the gradients of a step were; an Error where they had to be finite. `by`: "[zero] ".
void settle(const StepReport& report, optim::DynamicLossScaler* scaler, NonFinite rule, const char* by, int64_t step);

/// Stage 3 is not seen by others: stage3.cpp.
std::unique_ptr<Stage> make_stage3(nn::Module& module, std::vector<optim::Optimizer*> optimizers,
                                   const ZeroOptions& options, dist::ProcessGroup& group);
/// Made and built.
std::unique_ptr<Stage> make_stage(nn::Module& module, std::vector<optim::Optimizer*> optimizers,
                                  const ZeroOptions& options, dist::ProcessGroup& group);

}  // namespace lockstep::zero
