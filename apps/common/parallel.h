#pragma once
// Ranks that train together, as a program sees them: how it joins them, who prints, and the micro-batches of a step.
//
// A step is a fixed list of micro-batches 0 .. M-1, M = ranks x accumulate; rank r has r*A .. r*A+A-1. Data, dropout and
// the order of every sum follow from that number alone, so the bits of a run depend on the list, not on who computes it:
//
//   --accumulate 4        one process    0 1 2 3
//   --accumulate 2        two ranks      0 1 | 2 3
//   --accumulate 1        four ranks     0 | 1 | 2 | 3
#include <CLI/CLI.hpp>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "engine/engine.h"
#include "nn/module.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel.h"
#include "parallel/mesh.h"

namespace apps {

struct ParallelOptions {
  std::string strategy = "auto";  ///< ddp, dp, none; auto: ddp when there are ranks
  int devices = 0;                ///< dp: how many devices of the model's type (on the CPU, virtual ones); 0: all
  int ranks = 0;                  ///< ranks as threads of this process; 0: the job's ranks, or this process alone
  int64_t accumulate = 1;         ///< micro-batches of a step at each rank
  double bucket_mib = 25;
  bool overlap = true;
  int zero = -1;                  ///< stage of ZeRO among the ranks; -1: DDP
  std::string offload = "none";   ///< of ZeRO: cpu, or nvme:FOLDER
  std::string trace_bits;         ///< file for a line of hashes per step, for `lockstep verify`
  int sharing = 1;                ///< neighbours that share each micro-batch (--context-parallel)
  std::shared_ptr<const lockstep::parallel::Mesh> experts;  ///< when ranks have different ones (--expert-parallel)
  std::string trace;              ///< a folder, or a file of one rank, for the timeline
  double trace_mib = 1024;        ///< limit of its files
  std::string identity;           ///< what must be equal on all ranks: this build and the options
};
void add_parallel_options(CLI::App& app, ParallelOptions& options);

/// The ranks that train together, as one of them sees them.
class Team {
 public:
  explicit Team(lockstep::dist::ProcessGroup* group, bool threads = false) : group_(group), threads_(threads), leads_(!group || group->rank() == 0) {}
  /// Some ranks of `whole`, for what only they share; nullptr: this rank alone.
  Team(const Team& whole, lockstep::dist::ProcessGroup* group) : group_(group), threads_(whole.threads_), leads_(whole.leads_) {}
  int rank() const { return group_ ? group_->rank() : 0; }
  int size() const { return group_ ? group_->size() : 1; }
  /// Among the ranks of this machine.
  int local_rank() const;
  /// Rank 0 prints, and writes the files of a run.
  bool leads() const { return leads_; }
  /// The one rank of a process that may touch what belongs to the process (signals).
  bool owns_process() const { return !threads_ || leads(); }
  /// Null when this process trains alone.
  lockstep::dist::ProcessGroup* group() const { return group_; }
  /// Returns when all ranks are here.
  void wait() const { if (group_) group_->barrier(); }
  /// Error when ranks hold other data: an old copy on one host would train on it without a word. `what` names them.
  void check_same(const std::string& what, const std::vector<const lockstep::Tensor*>& data) const;
  /// Element-wise sum over ranks. Exact when every element is zero on all ranks but one: so a list is put together.
  void sum(std::vector<double>& values, const char* tag) const;
  /// Everybody's values, one rank after another.
  std::vector<double> gather(const std::vector<double>& values, const char* tag) const;

 private:
  lockstep::dist::ProcessGroup* group_;
  bool threads_, leads_;
};

/// Calls forward(model), or forward(DataParallel) with --parallel dp; at the end, report() says what went where.
template <class M>
class MaybeDataParallel {
 public:
  template <class Make>
  MaybeDataParallel(const ParallelOptions& options, M& model, const Make& make) : model_(model) {
    if (options.strategy == "dp") parallel_.emplace(model, make, lockstep::parallel::DataParallelOptions{.devices = devices_of(options, model)});
  }
  template <class Forward>
  lockstep::Variable operator()(const Forward& forward) { return parallel_ ? forward(*parallel_) : forward(model_); }
  /// "" without dp.
  std::string report() const { return parallel_ ? to_string(parallel_->bytes_moved()) : ""; }

 private:
  static std::vector<lockstep::Device> devices_of(const ParallelOptions& options, M& model) {
    const lockstep::Device first = model.parameters().at(0).device();
    std::vector<lockstep::Device> all = lockstep::all_devices(first.type);
    LOCKSTEP_CHECK(options.devices <= int(all.size()), "--devices ", options.devices, ": there are ", all.size());
    if (options.devices > 0) all.resize(size_t(options.devices));
    LOCKSTEP_CHECK(first == all[0], "--parallel dp starts at the first device, ", all[0], ", got ", first);
    return all;
  }
  M& model_;
  std::optional<lockstep::parallel::DataParallel<M>> parallel_;
};

/// Runs `body` on every rank: joins the job that the environment names, makes threads (--ranks), or runs alone. What a
/// rank throws is what all ranks raise.
void run_team(const ParallelOptions& options, const std::function<void(Team&)>& body);
/// This build and the options that a subcommand was given, for ParallelOptions::identity.
std::string identity_of(const CLI::App& subcommand);
/// Error when this process is one of several ranks, for commands that would only repeat each other.
void check_alone(const std::string& command);
/// "rank 1: " in a job of several ranks, for messages; else empty.
std::string rank_prefix();
/// Writes the error to LOCKSTEP_ERROR_FILE, where the launcher looks for it. Nothing when unset.
void write_error_file(const std::string& message) noexcept;

/// What --trace-bits writes: a hash of each parameter.
uint64_t hash_of(const lockstep::Tensor& tensor);
/// The hashes that ranks hold, 0 for parameters that a rank has not. Error when two hold different ones.
std::vector<int64_t> merge_hashes(const Team& team, const std::vector<std::string>& names, const std::vector<int64_t>& mine, int64_t step);
/// A line for the step, when `out` is open.
void write_trace_line(std::ofstream& out, int64_t step, double loss, const std::vector<std::string>& names, const std::vector<int64_t>& hashes);

/// The gradients of a step: micro-batch after micro-batch, summed over all of them in one fixed order.
class MicroBatches {
 public:
  /// With ranks, wraps `model` into DDP or ZeRO: from here on it has rank 0's values everywhere. skip_overflow: step() leaves out
  /// steps with NaN or infinity (ZeRO says so at once otherwise; DDP leaves it to the scaler).
  MicroBatches(const Team& team, lockstep::nn::Module& model, lockstep::optim::Optimizer& optimizer, const ParallelOptions& options, bool skip_overflow = false);
  /// All of it by an engine, and its configuration file.
  MicroBatches(const Team& team, lockstep::nn::Module& model, lockstep::engine::EngineBase& engine, const ParallelOptions& options);
  ~MicroBatches();
  /// Of a step, over all ranks.
  int64_t count() const { return options_.accumulate * team_.size() / options_.sharing; }
  /// Whether this rank takes every size()-th of them, instead of neighbours.
  bool are_interleaved() const { return options_.zero >= 2; }

  struct Report {
    double loss = 0;    ///< mean over all micro-batches, the same on all ranks
    bool stop = false;  ///< Ctrl-C at any rank: all stop after this step
  };
  using Loss = std::function<lockstep::Variable(int64_t micro_batch)>;
  using Scale = std::function<lockstep::Variable(const lockstep::Variable& loss)>;
  /// Runs `loss` and its backward for each micro-batch of this rank, with gradients of scale(loss).
  Report backward(int64_t step, const Loss& loss, const Scale& scale = {});
  /// The optimizer's step with the mean gradient over all ranks' micro-batches, unscaled, and clipped to `clip` (0: not), unless the
  /// scaler finds that it overflowed. Clears the gradients; gives back their norm (NaN without clipping).
  double step(double clip = 0, lockstep::optim::GradScaler* scaler = nullptr);
  /// Clips in place of optim::clip_grad_norm() (tensor parallelism: over all slices).
  void clip_with(std::function<double(double max_norm)> clip) { clip_ = std::move(clip); }

  /// Runs `fn` while the model is whole on every rank, for evaluation and export.
  void while_whole(const std::function<void()>& fn);
  /// The same with the optimizer's state in the optimizer: fn saves both, or loads both.
  void save(const std::function<void()>& fn);
  void load(const std::function<void()>& fn);
  /// The same of a model of which other ranks have other parts (experts): the whole state of its optimizer; and what is this rank's of a whole state.
  lockstep::optim::OptimizerState whole_state();
  void load(const lockstep::nn::State& model, const lockstep::optim::OptimizerState& optimizer);

  /// After a step: writes its hashes (--trace-bits). Error when ranks hold different parameters.
  void trace(int64_t step, double loss);

 private:
  struct Impl;
  void drop_tensors();  // the optimizer's own state: ZeRO has it
  void open_trace();
  int64_t number_of(int64_t i) const;  // of this rank's micro-batch i
  const Team& team_;
  lockstep::nn::Module& model_;
  ParallelOptions options_;
  std::function<double(double)> clip_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apps
