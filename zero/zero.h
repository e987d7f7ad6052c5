#pragma once
// ZeRO: data parallelism without redundant state (Rajbhandari et al., SC 2020, arXiv:1910.02054). DDP keeps parameters,
// gradients and optimizer state on every rank. ZeRO keeps only a shard of them on each rank, and communicates shards
// when they are needed. For Ψ parameters in 16 bits, Adam and N ranks:
//
//                                           bytes per parameter on each rank     elements sent by each rank per step of
//                                           parameters   gradients   optimizer   A micro-batches, times Ψ (N-1)/N
//   stage 0   shards nothing   stage.cpp    2            2           12          2: all-reduce of gradients
//   stage 1   optimizer state  stage1.cpp   2            2           12/N        2: reduce gradients, gather parameters
//   stage 2   and gradients    stage2.cpp   2            2/N         12/N        A+1: reduce A times, gather once
//   stage 3   and parameters   stage3.cpp   2/N          2/N         12/N        3A: reduce A times, gather 2A times
//
//   zero::Zero zero(model, optimizer, {.stage = 2});      // broadcasts rank 0's parameters
//   for (int i = 0; i < accumulation; ++i) loss(zero.micro_batch(i, accumulation)).backward();
//   zero.step({.grad_scale = 1. / accumulation});         // replaces optimizer.step(), and clears the gradients
//
// Reproducibility: if the number of ranks and the accumulation are powers of two, parameters are bit-identical to DDP's
// in every stage, with or without overlap, for any size of units: see micro_batch().
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/at_end.h"
#include "dist/process_group.h"
#include "nn/module.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "zero/offload/options.h"

namespace lockstep {
struct NormPiece;
}
namespace lockstep::parallel {
enum class Do : uint8_t;
}

namespace lockstep::zero {

class Stage;
struct CapturedStep;
struct PlannedUnit;
struct StatePiece;

/// How step() handles NaN and infinity in a gradient of any rank. All ranks do the same.
enum class NonFinite {
  propagate,  ///< do not check: NaN and infinity reach the parameters
  skip,       ///< no rank changes anything, and StepReport::skipped is true; for loss scaling
  error,      ///< an Error on all ranks that names the first such parameter and the rank
};

/// Parameters and buffers that are not on every rank: experts. If one rank has some, every other rank has equally many
/// of the same shapes under other names. Their state and gradients are sharded and summed over `group`, the ranks that
/// have the same experts. Gradients are still divided by the number of all ranks, since an expert sees tokens of
/// several ranks. Norms cover all experts.
struct ExpertParameters {
  std::set<std::string> names;          ///< names on this rank
  dist::ProcessGroup* group = nullptr;  ///< a subgroup of ZeRO's group
};

/// Options of Zero, named as in DeepSpeed if it has the same option; the same on all ranks. Sizes are in elements.
struct ZeroOptions {
  int stage = 1;                           ///< 0 to 3
  bool overlap_comm = true;                ///< true: overlap communication with computation. Same results.
  int64_t reduce_bucket_size = 6'500'000;  ///< size of a unit, parameters communicated together (25 MiB in f32)
  /// True: reduce gradients by reduce-scatter; false: by all-reduce, which sends twice the bytes. Same results.
  bool reduce_scatter = true;
  bool ignore_unused_parameters = false;  ///< true: skip parameters without gradient; false: Error
  /// Dtype in which gradients are reduced. Default: the parameters'.
  std::optional<DType> communication_data_type = {};
  NonFinite nonfinite = NonFinite::error;  ///< what to do with NaN and infinity in gradients
  bool hooks = true;                 ///< backward gives ZeRO the gradients; false: Zero::add() does, below stage 3
  bool init_sync = true;             ///< true: the constructor broadcasts rank 0's parameters and buffers
  int64_t sub_group_size = 1 << 21;  ///< elements that the optimizer updates at a time: a tile
  OffloadOptimizer offload_optimizer = {};  ///< offload of optimizer state, in any stage
  AioOptions aio = {};                      ///< reading and writing of files
  ExpertParameters experts = {};            ///< parameters that are not on every rank; empty: none

  // Stage 3
  int64_t prefetch_bucket_size = 5'000'000;         ///< elements to prefetch; 0: no prefetch
  int64_t param_persistence_threshold = 1000;       ///< smaller parameters are persistent: whole on every rank
  int64_t model_persistence_threshold = INT64_MAX;  ///< most elements of all persistent parameters together
  int64_t max_live_parameters = 1'000'000'000;      ///< elements of gathered units, beyond which nothing is prefetched
  /// A unit stays gathered if at most this many other elements are gathered before its next use. 0: it never stays.
  int64_t max_reuse_distance = 0;
  int64_t module_size = 0;          ///< modules of at most this size are gathered together with all modules below them
  OffloadParam offload_param = {};  ///< offload of parameter shards
};

struct StepReport;
/// Needed if the module given to Zero is only a part of the model (a pipeline stage, slices of layers). Through this
/// class step() agrees with the other parts on norms and skipped steps. The ranks of all parts must make the same calls
/// in the same order.
class OtherParts {
 public:
  virtual ~OtherParts() = default;
  /// Combines the parts' reports: afterwards `report` says what any part found (skipped, first_nonfinite, rank).
  virtual void agree(StepReport& report) = 0;
  /// The norm of all gradients of the model. squares: the sum of squares of each gradient of this part, by name.
  virtual double norm(const std::vector<std::pair<std::string, double>>& squares) = 0;
  /// Does the work of norm() and agree() on the device, for a captured step. `own` (f64) has the sum of squares of each
  /// gradient of this part, in the order of named_parameters(), and last the number of ranks that found
  /// non-finite values; this number is replaced by its sum over all parts. Returns the sums of squares of all parts.
  /// `pieces` receives the places of these sums in the result, in the order in which the norm adds them.
  virtual Tensor captured_norm(const Tensor& own, std::vector<NormPiece>& pieces) = 0;
};

/// Options of one step.
struct StepOptions {
  double grad_scale = 1;   ///< factor for the gradients, in f32; step() also divides them by the number of ranks
  double max_norm = 0;     ///< clip all gradients to this norm; 0: no clipping
  bool want_norm = false;  ///< true: compute the norm even without clipping
  optim::DynamicLossScaler* scaler = nullptr;  ///< gradients are divided by its scale; step() tells it the outcome
  OtherParts* others = nullptr;                ///< the other parts of the model; null: there are none
};

/// Outcome of one step.
struct StepReport {
  bool skipped = false;         ///< true: NonFinite::skip found a non-finite gradient, and nothing was changed
  double norm = NAN;            ///< norm of all gradients before clipping; NaN if it was not computed
  std::string first_nonfinite;  ///< the first parameter with a NaN or infinity in its gradient
  int rank = -1;                ///< the rank where this gradient was found
};

/// ZeRO for a module and its optimizers.
class Zero {
  void enter_no_sync();
  void leave_no_sync();

 public:
  using Options = ZeroOptions;
  /// Collective. Every parameter of `module` that requires grad must be in exactly one optimizer (Error otherwise).
  /// Trained parameters may be frozen and trained again later; below stage 3 parameters frozen from the start stay
  /// untouched. Module, optimizers and group must outlive this object. `group` defaults to dist::world().
  Zero(nn::Module& module, optim::Optimizer& optimizer, const Options& options = {},
       dist::ProcessGroup* group = nullptr);
  Zero(nn::Module& module, std::vector<optim::Optimizer*> optimizers, const Options& options = {},
       dist::ProcessGroup* group = nullptr);
  ~Zero();
  Zero(const Zero&) = delete;

  int stage() const;                  ///< 0 to 3
  dist::ProcessGroup& group() const;  ///< the ranks over which state is sharded

  /// Index of this rank's i-th micro-batch among a step's micro-batches 0 .. ranks * accumulation - 1. With 2 ranks and
  /// accumulation 2, rank 0 gets 0 and 1 in stages 0 and 1, which sum a rank's micro-batches before the exchange (all
  /// but the last one in no_sync()), but 0 and 2 in stages 2 and 3, which exchange each one. So gradients are summed in
  /// the order of dist/summation_tree.h, bit-identical to DDP's. Error unless 0 <= i < accumulation.
  int64_t micro_batch(int64_t i, int64_t accumulation) const;

  /// While a NoSync lives, backward sums gradients on this rank only; the first backward after it reduces the sum of
  /// all backwards. Only for stages 0 and 1 (else Error): in stages 2 and 3 no rank keeps whole gradients.
  using NoSync = While<Zero, &Zero::enter_no_sync, &Zero::leave_no_sync>;
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }  ///< begins the scope

  /// With hooks = false: takes each .grad away, as if one backward had made them all, and reduces them. A pipeline sums
  /// its micro-batches in .grad first. Collective. Error with hooks = true.
  void add();

  /// Updates this rank's shard with the gradients of all backwards since the last step, and shares the result.
  /// Collective. Before step() .grad is a placeholder without memory: reading it is an Error, clearing it discards the
  /// collected gradients.
  StepReport step(const StepOptions& options = {});
  /// A part of step(): check, norm, update, gather and scale, in this order. If check() sets StepReport::skipped, only
  /// scale follows. An exception discards the gradients.
  void act(parallel::Do what, const StepOptions& options, StepReport& report);
  /// A step() that was captured in a Graph, which CUDA devices can do (Error if offload or experts' parameters are
  /// used). Call before_replay() before each replay of the graph, and after_replay() after it. Only numbers in
  /// `options` may change between replays.
  using Captured = std::shared_ptr<const CapturedStep>;
  /// Counts the step, and writes its numbers (learning rates, scale) where the graph reads them. `of`: the step that is
  /// replayed; null: the one captured last. Error if can_replay(options) is false.
  void before_replay(const StepOptions& options = {}, const Captured& of = nullptr);
  /// Waits for the replay, updates the loss scaler, and reports as step() does. `of`: as for before_replay().
  StepReport after_replay(const StepOptions& options = {}, const Captured& of = nullptr);
  Captured captured() const;  ///< the step captured last
  /// Number of hooks that stage 3 has on calls of `module`. A replayed graph repeats the work of hooks, but calls none.
  int hooks_on(const nn::Module& module) const;
  /// Stage 3: frees parameters that a forward without backward has left gathered. Call this before recording a graph.
  void release();
  /// True if a replay can take these options: the factor for the gradients may be at most 1.
  bool can_replay(const StepOptions& options) const;
  /// Discards the gradients collected since the last step.
  void zero_grad();

  /// While a Gathered lives, the given parameters (default: all) are whole on every rank, for reading. With a modifier
  /// rank, that rank may write to them; at the end its values are broadcast, and master copies are updated. For
  /// experts' parameters (experts) modifier_rank must be 0: the first rank that has them may write. Beginning and end
  /// are collective. Error at the end if parameters were written to without a modifier rank.
  class Gathered {
   public:
    /// Error for a modifier rank outside the group or a parameter that does not belong to the module.
    Gathered(Zero& zero, const std::vector<Variable>& parameters, int modifier_rank = -1);
    ~Gathered() noexcept(false);
    Gathered(const Gathered&) = delete;

   private:
    Stage& stage_;
    std::vector<size_t> parameters_;
    std::vector<uint32_t> versions_;
    int modifier_rank_, exceptions_;
  };
  /// Begins the scope, see Gathered.
  [[nodiscard]] Gathered gathered(const std::vector<Variable>& parameters, int modifier_rank = -1) {
    return Gathered(*this, parameters, modifier_rank);
  }
  [[nodiscard]] Gathered gathered(int modifier_rank = -1);  ///< gathers all parameters

  /// Stage 3: declares that forward() of `module` reads a parameter of another module directly instead of calling it.
  /// nn::Module::reads() declares the same from inside a module. Error if `module` is not inside the one given to Zero.
  void register_external(nn::Module& module, const Variable& parameter);

  // Checkpoints store pieces of logical tensors, independent of the stage and the number of ranks.
  /// The pieces that this rank stores in a checkpoint. Each element of parameters and optimizer state is stored by
  /// exactly one rank. to_load = true: the pieces that this rank must load. Write into them, then call loaded(). make =
  /// true: creates optimizer state that does not exist yet.
  std::vector<StatePiece> state(bool to_load = false, bool make = true);
  /// Step counts and options by name: "optimizer.step.h.0.weight", "optimizer.group.0.lr".
  std::map<std::string, double> numbers() const;
  /// Sets the values that numbers() returned. If one is missing, throws an Error and changes nothing.
  void load_numbers(const std::map<std::string, double>& numbers);
  /// Completes a load: gives all ranks the parameters written into state()'s pieces, and updates f32 master copies of
  /// 16-bit parameters unless they were loaded too. masters = false leaves master copies alone, for a caller that puts
  /// the parameters' old values back before the next step. Collective.
  void loaded(bool masters = true);
  /// The units, for printing and tests. Their parameters are indices into the module's named_parameters().
  std::vector<PlannedUnit> units() const;

 private:
  std::unique_ptr<Stage> impl_;
};

}  // namespace lockstep::zero
