#pragma once
// ZeRO: data parallelism in which no two ranks keep the same thing (Rajbhandari et al., SC 2020, arXiv:1910.02054). DDP
// keeps parameters, gradients and optimizer state on every rank. ZeRO gives each rank a part of them, and moves the
// parts when they are needed:
//
//   bytes a parameter, N ranks (16 bits, Adam)  parameters gradients optimizer  moved a step, times (N-1)/N psi bytes
//   stage 0  DDP                      stage.cpp      2         2         12     2 (reduce and share gradients)
//   stage 1  optimizer state in parts stage1.cpp     2         2         12/N   2 (reduce gradients, share parameters)
//   stage 2  and gradients            stage2.cpp     2         2/N       12/N   2
//   stage 3  and parameters           stage3.cpp     2/N       2/N       12/N   3 (parameters twice, gradients once)
//
//   zero::Zero zero(model, optimizer, {.stage = 2});      // same parameters everywhere from here on
//   for (int i = 0; i < accumulation; ++i) loss(zero.micro_batch(i, accumulation)).backward();
//   zero.step({.grad_scale = 1. / accumulation});         // instead of optimizer.step(); gradients are gone afterwards
//
// Bits: for powers of two of ranks and of accumulation, parameters are those of DDP bit for bit, in every stage,
// overlap or not, for any size of units: see micro_batch().
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dist/process_group.h"
#include "nn/module.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "tensor/at_end.h"
#include "zero/offload.h"
#include "zero/partition.h"

namespace lockstep {
struct NormPiece;
}

namespace lockstep::zero {

class Stage;
struct CapturedStep;

/// What step() does about NaN and infinity in a gradient of any rank. Ranks always do the same.
enum class NonFinite {
  propagate,  ///< nothing: no check
  skip,       ///< no rank changes anything; the report says so. As loss scaling wants it.
  error,      ///< an Error on all ranks that names the first parameter, and the rank where it was found
};

/// Parameters and buffers that only some ranks have: experts. Where one rank has some, every other rank has as many of
/// the same shapes, by other names; what a rank keeps of them, and their gradients, go by `group`, the ranks that have
/// the same ones. Gradients are still divided by all ranks (an expert has seen the tokens of several), and norms are of
/// all there are.
struct Spread {
  std::set<std::string> names;
  dist::ProcessGroup* group = nullptr;  ///< part of ZeRO's group
};

/// Names are those of DeepSpeed's keys where it has one. Sizes count elements.
struct ZeroOptions {
  int stage = 1;                                 ///< 0 to 3
  bool overlap_comm = true;                      ///< move gradients and parameters while computing goes on. Same bits.
  int64_t reduce_bucket_size = 6'500'000;        ///< parameters that travel together: a unit (25 MiB in f32)
  bool reduce_scatter = true;                    ///< false: all-reduce instead, which moves twice the bytes. Same bits.
  bool ignore_unused_parameters = false;         ///< false: an Error names parameters without a gradient
  std::optional<DType> communication_data_type;  ///< of gradients that are summed and sent; else the parameters' own
  NonFinite nonfinite = NonFinite::error;
  bool init_sync = true;               ///< start from rank 0's parameters and buffers
  int64_t sub_group_size = 1 << 21;    ///< elements that the optimizer takes at a time: a tile, see offload.h
  OffloadOptimizer offload_optimizer;  ///< any stage
  AioOptions aio;                      ///< how files of offload are read and written
  Spread spread;                       ///< empty: all ranks have all parameters

  // Stage 3
  int64_t prefetch_bucket_size = 5'000'000;         ///< elements gathered ahead; 0: none
  int64_t param_persistence_threshold = 1000;       ///< smaller parameters stay whole on every rank
  int64_t model_persistence_threshold = INT64_MAX;  ///< but no more of them than this together
  int64_t max_live_parameters = 1'000'000'000;      ///< nothing is gathered ahead beyond it
  int64_t max_reuse_distance = 0;  ///< keep what is needed again before so many other elements; 0: nothing
  int64_t module_size = 0;         ///< modules of at most that many parameters are gathered as one, with all below them
  OffloadParam offload_param;
};

struct StepReport;
/// The rest of a model of which `module` is a part only (a stage of a pipeline, slices of layers): step() asks it. Its
/// ranks make the same calls in the same order.
class OtherParts {
 public:
  virtual ~OtherParts() = default;
  /// Makes of what this part found what any part found: skipped, and where.
  virtual void agree(StepReport& report) = 0;
  /// The norm of all gradients from the sums of squares of this part's, by name.
  virtual double norm(const std::vector<std::pair<std::string, double>>& squares) = 0;
  /// Both in a step that is captured, on the device. own: f64, the sums of squares of this part's trained parameters in
  /// the order of named_parameters(), and behind them a count of what is not finite, which becomes that of all parts.
  /// Gives back sums of all parts; `pieces`: where they lie, in the order of the norm.
  virtual Tensor captured_norm(const Tensor& own, std::vector<NormPiece>& pieces) = 0;
};

struct StepOptions {
  double grad_scale = 1;   ///< gradients are multiplied by it in f32, and divided by the number of ranks
  double max_norm = 0;     ///< clip to this norm over all parameters; 0: no clipping
  bool want_norm = false;  ///< compute the norm also without clipping
  optim::DynamicLossScaler* scaler = nullptr;  ///< divides by its scale, tells it how the step went
  OtherParts* others = nullptr;                ///< none: the module is the whole model
};

struct StepReport {
  bool skipped = false;         ///< NonFinite::skip found something: nothing was changed
  double norm = NAN;            ///< of all gradients, before clipping
  std::string first_nonfinite;  ///< name of the first parameter with NaN or infinity
  int rank = -1;                ///< and the rank where it was found
};

/// A part of something that a checkpoint stores whole: elements `range` of the tensor `name`, flat.
struct StatePiece {
  std::string name;  ///< "model.h.0.weight", "optimizer.exp_avg.h.0.weight"
  Shape shape;       ///< of the whole
  dist::Range range;
  Tensor tensor;  ///< the live one: to be read, or written by a load
};

class Zero {
  void enter_no_sync();
  void leave_no_sync();
  void enter_pause();
  void leave_pause();

 public:
  using Options = ZeroOptions;
  /// Every parameter of `module` that requires grad must be in exactly one of the optimizers; those may be frozen and
  /// trained again later. They, the module and the group must be there while it is used. Frozen parameters stay as they
  /// are below stage 3. Collective. `group`: default dist::world().
  Zero(nn::Module& module, optim::Optimizer& optimizer, const Options& options = {},
       dist::ProcessGroup* group = nullptr);
  Zero(nn::Module& module, std::vector<optim::Optimizer*> optimizers, const Options& options = {},
       dist::ProcessGroup* group = nullptr);
  ~Zero();
  Zero(const Zero&) = delete;

  int stage() const;
  dist::ProcessGroup& group() const;

  /// Which of a step's micro-batches 0 .. ranks * accumulation - 1 this rank takes as its i-th. Stages 0 and 1 sum
  /// their own (inside no_sync(), all but the last) before they meet the others', so neighbours lie on one rank; stages
  /// 2 and 3 reduce each at once, so neighbours lie on neighbouring ranks. Either way the sum is made in the order of
  /// the one tree (dist/summation_tree.h), and has DDP's bits.
  int64_t micro_batch(int64_t i, int64_t accumulation) const;

  /// While this lives, backward sums gradients at this rank only; the first backward after it reduces the sum of all.
  /// Stages 0 and 1: from stage 2 on nobody has the memory for it (Error).
  using NoSync = While<Zero, &Zero::enter_no_sync, &Zero::leave_no_sync>;
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  /// While this lives, backwards are not ZeRO's: gradients stay in .grad, for who adds them up himself and hands the
  /// sum over as one backward (a pipeline). Between steps only, below stage 3.
  using Pause = While<Zero, &Zero::enter_pause, &Zero::leave_pause>;

  /// Updates this rank's part with the gradients of all backwards since the last step, and shares the result.
  /// Collective. Until then .grad is a placeholder without memory: reading it is an Error, clearing it forgets what was
  /// collected.
  StepReport step(const StepOptions& options = {});
  /// step() may be captured in a Graph, where ranks have the whole model on CUDA devices. Before each replay
  /// before_replay() counts the step and writes its numbers (learning rates, scale) where the graph reads them;
  /// after it, after_replay() waits and says how it went, as step() does, and tells the scaler. The same options, but
  /// for numbers. `of`: where there are several graphs, what captured() was behind the one that is replayed.
  using Captured = std::shared_ptr<const CapturedStep>;
  void before_replay(const StepOptions& options = {}, const Captured& of = nullptr);
  StepReport after_replay(const StepOptions& options = {}, const Captured& of = nullptr);
  Captured captured() const;  ///< the last step that was captured
  /// Hooks that it has on calls of this module: what a graph repeats without calling them.
  int hooks_on(const nn::Module& module) const;
  /// Stage 3: frees what a forward without a backward has left whole. To be called before a recording.
  void release();
  /// Whether a replay can take these options: gradients may be multiplied by 1 at most.
  bool can_replay(const StepOptions& options) const;
  /// Forgets the gradients collected since the last step.
  void zero_grad();

  /// While this lives, the given parameters (default: all) are whole on every rank, for reading. With a modifier rank
  /// they may be changed there; at the end everybody gets that rank's values, and master copies follow (of what is
  /// spread: those of the first rank that has it, and the modifier rank is 0). Collective at both ends. An Error when
  /// they were changed without one.
  class Gathered {
   public:
    Gathered(Zero& zero, const std::vector<Variable>& parameters, int modifier_rank = -1);
    ~Gathered() noexcept(false);
    Gathered(const Gathered&) = delete;

   private:
    Stage& stage_;
    std::vector<size_t> parameters_;
    std::vector<uint32_t> versions_;
    int modifier_rank_, exceptions_;
  };
  [[nodiscard]] Gathered gathered(const std::vector<Variable>& parameters, int modifier_rank = -1) {
    return Gathered(*this, parameters, modifier_rank);
  }
  [[nodiscard]] Gathered gathered(int modifier_rank = -1);

  /// Stage 3: forward() of `module` reads a parameter of another module itself, instead of calling it.
  /// nn::Module::reads() says the same from inside a module.
  void register_external(nn::Module& module, const Variable& parameter);

  // What checkpoints store: pieces of logical tensors, whatever the stage and the number of ranks.
  /// This rank's pieces: every element of every parameter and of what optimizers keep lies at one rank. to_load: what
  /// this rank needs instead, the optimizer's tensors made (`make`) where there are none yet; write into them, then
  /// call loaded().
  std::vector<StatePiece> state(bool to_load = false, bool make = true);
  std::map<std::string, double> numbers() const;  ///< "optimizer.step.h.0.weight", "optimizer.group.0.lr"
  void load_numbers(const std::map<std::string, double>& numbers);
  /// Parameters become what the pieces say, and f32 master copies, unless they were written to as well, follow those of
  /// 16 bits. masters = false: they stay, for somebody who puts the parameters back before the next step. Collective.
  void loaded(bool masters = true);
  /// For printing and tests; parameters are places in the module's named_parameters().
  std::vector<PlannedUnit> units() const;

 private:
  std::unique_ptr<Stage> impl_;
};

}  // namespace lockstep::zero
