#pragma once
// The base of all stages, and stage 0 itself: every rank keeps all state, and gradients are all-reduced. Each further
// stage shards one more kind of state, in a file of its own. Internal; users include zero.h.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dist/summation_tree.h"
#include "optim/step_batch.h"
#include "parallel/agreement.h"
#include "parallel/reducer.h"
#include "parallel/step.h"
#include "zero/partition.h"
#include "zero/waits.h"
#include "zero/zero.h"

namespace lockstep::zero {

class Gather;
class Tiles;
struct TilePart;

/// A parameter of the module.
struct Parameter {
  std::string name;
  Variable variable;
  optim::Optimizer* optimizer = nullptr;      ///< optimizer that updates the parameter; null: frozen
  int group = 0;                              ///< parameter group of the optimizer
  int rule = 0;                               ///< index of the group among the groups of all optimizers
  dist::ProcessGroup* ranks = nullptr;        ///< the ranks that have the parameter
  size_t unit = SIZE_MAX, index_in_unit = 0;  ///< unit: SIZE_MAX if frozen and below stage 3
  int64_t steps = 0;                          ///< updates so far
  int64_t first_block = 0;                    ///< index of the first block among the norm blocks of all parameters
  uint32_t known_version = 0;                 ///< storage version that the master copy has (optim::ParameterState)
  bool trains() const { return optimizer != nullptr; }  ///< true if an optimizer updates the parameter
};

/// The part of a parameter that this rank owns; two pieces if offload_optimizer.ratio splits this part.
struct OwnedPiece {
  size_t parameter = 0;
  dist::Range range;  ///< the parameter's elements in the piece
  int64_t at = 0;     ///< first element in the shard
  // The optimizer's state of the piece: read it through Stage::state_of().
  Offload home = Offload::none;              ///< nvme: the state lies in regions of the file
  std::map<std::string, Tensor> state = {};  ///< by name, flat, range.size() elements; undefined: in the file
  /// Names of the state that earlier steps have made. State made by the running step does not count yet: each of its
  /// tiles must start without it.
  std::set<std::string> keys = {};
  /// Category of the state in the memory ledger.
  Memory memory() const { return home == Offload::none ? Memory::optimizer : Memory::offload; }
};

/// Parameters that are communicated together, with this rank's part of them.
struct Unit : PlannedUnit {
  std::string tag;                      ///< tag of the unit's collectives; ranks that disagree get an Error
  dist::ProcessGroup* group = nullptr;  ///< the ranks that have the unit's parameters
  /// True: an optimizer updates the unit's parameters; false: all are frozen.
  bool trains = true;
  size_t number = 0;                        ///< index among all units
  int64_t first = 0;                        ///< index of the first parameter among those of all units
  DType dtype = f32, gradient_dtype = f32;  ///< dtype of the parameters; dtype in which gradients are summed
  std::vector<OwnedPiece> pieces;           ///< this rank's pieces of trained parameters

  Tensor weights;          ///< from stage 1 on: the flat memory of the unit; its parameters are views
  Tensor grad_shard;       ///< sum over ranks of the gradients that this rank owns, from the last reduction
  dist::TreeSum reduced;   ///< sums of the earlier reductions
  dist::Work gather_work;  ///< the running exchange of updated parameters
};

/// The range of the optimizer's state tensor `key` that belongs to `elements` of a parameter. A state tensor has one
/// number per element, or per block in 8-bit state. An optimizer that is not elementwise needs the whole state tensor.
inline dist::Range entries(const Parameter& p, const std::string& key, dist::Range elements) {
  if (p.optimizer && !p.optimizer->is_elementwise())
    return {0, elements.size() > 0 ? numel_of(p.optimizer->state_shape(key, p.variable.shape())) : 0};
  const int64_t block = optim::is_per_block(key) ? p.optimizer->block() : 1;
  return {elements.begin / block, (elements.end + block - 1) / block};
}

/// False for dtypes of 16 bits, whose parameters have f32 master copies.
inline bool is_wide(DType dtype) { return size_of(dtype) >= 4; }

/// Views a contiguous tensor as one dim.
inline Tensor flat(const Tensor& tensor) { return tensor.view({tensor.numel()}); }

/// A step() that was captured in a graph.
struct CapturedStep {
  std::vector<bool> used;           ///< true for the parameters that the step updates
  std::vector<Tensor> grad_shards;  ///< gradients of all units
  Tensor own_bad;                   ///< own_bad_ of the captured step
  bool has_norm = false;
};

/// Base of the stages, and stage 0 itself: does the work behind class Zero. As a Policy, it tells the reducer of
/// gradients where to store a unit's gradients and how to sum them over ranks.
class Stage : public parallel::Reducer::Policy {
 public:
  /// Checks the options and the optimizers' parameters. The caller must call build() next.
  Stage(nn::Module& module, std::vector<optim::Optimizer*> optimizers, const ZeroOptions& options,
        dist::ProcessGroup& group);
  ~Stage() override;
  Stage(const Stage&) = delete;
  /// The second half of construction, which calls virtual functions. Collective.
  void build();

  // The model, in units and shards
  nn::Module& module;
  const std::vector<optim::Optimizer*> optimizers;
  const ZeroOptions options;
  dist::ProcessGroup& group;
  Device device = cpu;                ///< device of all parameters; cpu stands for every CPU device
  std::vector<Parameter> parameters;  ///< in the order of fields()
  std::vector<Unit> units;            ///< planned by units.h, in the order in which gradients are expected
  int64_t norm_blocks_of_all = 0;     ///< norm blocks of all trained parameters
  std::optional<StepBatch> batch;     ///< collected kernels of a step on a CUDA device
  bool scaled = true;  ///< true: step() has applied the scale to a 32-bit `grad_shard`; false: kernels apply it

  /// Index of a parameter; Error if it does not belong to the module.
  size_t index_of(const Variable& variable) const;
  int rank() const { return group.rank(); }          ///< this rank's number in the group
  bool is_cut() const { return options.stage > 0; }  ///< true from stage 1 on: units are cut into a shard per rank
  /// Index of this rank's shard of a unit; 0 if units are not sharded.
  int shard_number(const Unit& unit) const { return is_cut() ? unit.group->rank() : 0; }
  /// This rank's range of the elements of a unit.
  dist::Range shard(const Unit& unit) const { return unit.layout.range(shard_number(unit)); }
  /// Starts to gather the unit's parameters on all ranks, in unit.weights. own_shard: this rank's shard of them.
  dist::Work all_gather(const Unit& unit, const Tensor& own_shard) const;
  /// Names and dtypes of the state that the optimizer keeps for a parameter.
  static std::map<std::string, DType> keys_of(const Parameter& p);
  /// True if the unit is updated on a CUDA device by the kernels of StepBatch, which update many tensors at once.
  bool is_collected(const Unit& unit) const;
  /// The device that updates a piece, and the memory of its state.
  Device home_of(const OwnedPiece& piece) const { return piece.home == Offload::none ? device : Device(cpu); }
  /// True for an expert, which only some ranks have.
  bool is_expert(const Parameter& p) const { return p.ranks != &group; }
  /// Throws an Error with this message on all ranks.
  [[noreturn]] void fail_everywhere(const std::string& message) const { parallel::fail_everywhere(group, message); }
  /// Calls fn. An Error on one rank, such as that of a full disk, becomes an Error on all ranks.
  template <class Fn> auto on_files(Fn&& fn) const {
    std::string message;
    try {
      return fn();
    } catch (const Error& error) { message = error.what(); }
    fail_everywhere(message);
  }

  void act(parallel::Do what, const StepOptions& o, StepReport& report);  ///< see Zero::act()
  double scale_of(const StepOptions& o) const;  ///< factor for the gradients: grad_scale / ranks / loss scale
  /// Prepares a replay of a captured step, see Zero::before_replay().
  void before_replay(const StepOptions& o, const std::shared_ptr<const CapturedStep>& step);
  /// Returns the outcome of a replay, see Zero::after_replay().
  StepReport after_replay(const StepOptions& o, const std::shared_ptr<const CapturedStep>& step);
  const std::shared_ptr<const CapturedStep>& captured() const { return captured_; }  ///< the step captured last
  void forget() { reducer_->forget(); }                                              ///< discards all gradients
  void enter_no_sync();                                ///< begins a no_sync scope; Error from stage 2 on
  void leave_no_sync() { reducer_->leave_no_sync(); }  ///< ends a no_sync scope
  void add();                                          ///< see Zero::add()

  /// Broadcasts a rank's values of these parameters, which must be pinned, and updates shards and master copies.
  void take_from(int rank, const std::vector<size_t>& parameters);
  /// Stage 3: the gathers of parameters. Null in other stages, in which they are whole at all times.
  Gather* gathers() const { return gathers_.get(); }
  parallel::Reducer& reducer() { return *reducer_; }  ///< numbers parameters and units as the Stage does

  // Defined in state.cpp
  std::vector<StatePiece> state(bool to_load, bool make);           ///< see Zero::state()
  std::map<std::string, double> numbers() const;                    ///< see Zero::numbers()
  void load_numbers(const std::map<std::string, double>& numbers);  ///< see Zero::load_numbers()
  void loaded(bool masters);                                        ///< see Zero::loaded()

  // Six functions distinguish the stages: weight(), gather_weights() and allocate(), and of the reducer's policy
  // memory(), start() and pass().
  virtual Tensor weight(const Unit& unit, const OwnedPiece& piece);  ///< the parameter's elements of a piece, flat
  virtual void gather_weights(Unit&) {}                              ///< starts to share an updated unit

 protected:
  virtual void allocate(Unit& unit);  ///< moves the parameters of a unit to their memory
  Tensor memory(size_t unit) override;
  /// Begins to sum a unit's gradients over ranks (in stage 0 by all_reduce). Returns a function that waits until the
  /// sum is in unit.grad_shard.
  std::function<void()> start(size_t unit, const Tensor& sum) override;

  static Tensor value_of(const Parameter& p);  ///< the whole tensor, even of a parameter that was built empty

  std::optional<parallel::Reducer> reducer_;
  std::unique_ptr<Gather> gathers_;

 private:
  void filled(size_t unit, const Tensor& flat) final;
  void discarded() final;

  // Defined in shards.cpp
  void check_experts() const;
  void agree();
  void plan();
  void find_homes();

  void listen();

  // Defined in step.cpp
  void check_call(const StepOptions& o);
  void check(const StepOptions& o, StepReport& report);
  void norm(const StepOptions& o, StepReport& report);
  void gather();
  void finish_step(const StepOptions& o, const StepReport& report);
  void check_unpinned() const;
  std::vector<bool> agree_on_used();
  int64_t first_bad(bool looks_at_sums) const;
  void check_finite(const StepOptions& o, const Tensor& squares, StepReport& report);
  bool has_all_squares() const;
  Tensor squares_of_blocks(double scale, const std::vector<bool>& used);
  double norm_of(const StepOptions& o, const Tensor& squares);
  // Between the calls of a step:
  std::vector<bool> used_;  // true for the parameters that the step updates
  double scale_ = 1;        // factor for their gradients
  Tensor squares_;          // undefined: no norm is wanted
  void begin_record(const StepOptions& o);
  void record_norm(const StepOptions& o);
  CapturedStep recording_;
  std::shared_ptr<const CapturedStep> captured_;  // the step captured last

  // Defined in update.cpp
  void update(const StepOptions& o, const StepReport& report);
  void update(TilePart& part, Tensor gradient, bool collects);
  void collect_numbers(const std::vector<bool>& used);
  Tensor gradient(const Unit& unit, dist::Range elements, double scale) const;
  std::unique_ptr<Tiles> tiles_;  // destroyed before gathers_, in whose file of shards tiles may lie

  // Defined in state.cpp
  OwnedPiece all_owned(const Parameter& p) const;  // the part of p that this rank owns, as one piece
  std::map<std::string, Tensor> state_of(const Unit& unit, OwnedPiece& piece, bool create_missing = false);
  void update_master_copy(const Unit& unit, OwnedPiece& piece);
  void update_master_copies();
  void written(const std::vector<bool>& updated);
  void see();

  // For each parameter: true if this rank (used_anywhere_: any rank) used it in the last step that was not recorded.
  std::vector<bool> used_here_, used_anywhere_;
  // For each parameter of each unit, on the device: 1 if this rank's own gradients had NaN or infinity since the last
  // step. Undefined: not checked.
  Tensor own_bad_;
  int64_t steps_ = 0;
};

/// Stage 1: shards optimizer state.
class Stage1 : public Stage {
 public:
  using Stage::Stage;
  void gather_weights(Unit& unit) override;

 protected:
  void allocate(Unit& unit) override;
  void move_into_weights(Unit& unit);  ///< makes the parameters views of unit.weights, with the same values
  /// Starts to reduce the gradients `full` of a unit to their owners; `grad_shard` gets this rank's shard of the sum.
  dist::Work reduce_to_owners(const Unit& unit, const Tensor& full, const Tensor& grad_shard);
  std::function<void()> start(size_t unit, const Tensor& sum) override;
};

/// Stage 2: shards gradients as well.
class Stage2 : public Stage1 {
 public:
  using Stage1::Stage1;

 protected:
  Tensor memory(size_t unit) override;
  std::function<void()> start(size_t unit, const Tensor& sum) override;
  void pass(parallel::Reducer::Pass moment, size_t unit) override;

 private:
  std::vector<Tensor> pool_;   // buffers that units use in turn
  std::vector<size_t> begun_;  // units that have got a buffer in this backward, in order
};

/// Stage 3: shards parameters as well.
class Stage3 final : public Stage2 {
 public:
  using Stage2::Stage2;
  Tensor weight(const Unit& unit, const OwnedPiece& piece) override;
  void gather_weights(Unit& unit) override;

 protected:
  void allocate(Unit& unit) override;
  void pass(parallel::Reducer::Pass moment, size_t unit) override;
};

/// Tells the loss scaler the outcome of a step. Error if a gradient was not finite, unless `rule` is NonFinite::skip.
/// `by` is the beginning of the Error's text: "[zero] ".
void adapt(const StepReport& report, optim::DynamicLossScaler* scaler, NonFinite rule, const char* by, int64_t step);

/// Makes and builds the stage given in the options.
std::unique_ptr<Stage> make_stage(nn::Module& module, std::vector<optim::Optimizer*> optimizers,
                                  const ZeroOptions& options, dist::ProcessGroup& group);

}  // namespace lockstep::zero
