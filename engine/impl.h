#pragma once
// Internal state of an engine. Not for users: they see engine.h.
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "checkpoint/checkpoint.h"
#include "data/to_device.h"
#include "engine/engine.h"
#include "engine/part.h"
#include "engine/section.h"
#include "engine/step_graphs.h"
#include "nn/layer_list.h"
#include "parallel/activation_checkpoints.h"
#include "tensor/memory.h"
#include "zero/waits.h"

namespace lockstep::engine {

/// Milliseconds since `start`, a time of steady_seconds().
inline double milliseconds_since(double start) { return 1e3 * (steady_seconds() - start); }

/// Milliseconds spent in each phase of a step. `backward` includes `inner`, in which the tape runs, and `reduce`, in
/// which the rank waits for reduced gradients. read, write, gather: see zero::Waited. wait: those three and `reduce`.
struct Breakdown {
  double forward = 0, backward = 0, inner = 0, reduce = 0, step = 0, read = 0, write = 0, gather = 0, wait = 0;
};

/// Returns loss * factor, computed in f32 if the loss has a 16-bit dtype.
Variable times_factor(const Variable& loss, double factor);
/// Returns the same, bit for bit, with a factor that is a tensor of one element.
Variable times_factor(const Variable& loss, const Tensor& factor);

constexpr const char* needs_metric =
    "[step] expected step(metric) after the step's last micro-batch: ReduceLROnPlateau needs a metric";

/// Loss and token count of one micro-batch whose backward has run in the current step.
struct Micro {
  Tensor loss;          // undefined if the caller ran backward
  int64_t tokens = -1;  // tokens that the loss is a sum over; -1: the loss is a mean
};

/// A participant, and the section that made it.
struct Participating {
  const Section* section;
  std::unique_ptr<Participant> participant;
};

/// The step that is running.
struct RunningStep {
  std::vector<Micro> micros;
  /// Values that one action of the step stores for later actions.
  struct Step {
    const pipeline::Data* data = nullptr;
    std::deque<MicroBatch> ahead;  // micro-batches that were loaded in advance
    MicroBatch one;                // the current micro-batch
    Variable loss;
    StepGraphs::Recorded* graph = nullptr;  // set in a recording or replay: the step's numbers, as tensors
    std::optional<double> metric;
    double start = 0, scale_before = 1;  // scale_before: the loss scale
    int64_t backwards = 0;
    zero::StepOptions options;
    zero::StepReport done;
  } now;
  int pending = 0, forwards = 0;  // backwards and forwards since the last step()
  std::optional<double> factor;   // factor of the step's losses
  bool scaled = false;            // true if the loss of the coming backward is scaled already
  bool in_pass = false, failed = false, closed = false;
  bool is_seeded = false;  // true: the random stream of the coming micro-batch was started when its data were loaded
  int64_t loops = 0;       // number of nested loops over DataLoaders at the step's start
  bool said_unfilled = false;
  int no_sync_depth = 0;
  std::optional<zero::Zero::NoSync> local;         // set while the current backward sums on this rank only
  std::optional<zero::Zero::NoSync> caller_local;  // set while a no_sync() of the caller lives
};

/// The engine's counts, and the results of its last step.
struct Counters {
  int64_t micro_steps = 0, global_steps = 0, skipped_steps = 0, global_samples = 0;
  double loss = NAN, norm = NAN;
  double tokens = 0;  // tokens of the step on all ranks; 0 if losses are means
};

/// Times of the steps and of their phases.
struct StepTimes {
  Breakdown times, printed_times;  // times: of the current step; printed_times: since the last printed line
  int64_t timed_steps = 0;
  zero::Waited waited_before = zero::waited;     // at the end of the last step
  double forward_start = 0, backward_start = 0;  // by steady_seconds()
  int64_t forward_traced = 0;                    // by trace::now()
  bool timing_forward = false;
};

/// What errors of this thread say when memory runs out, see memory_advice.h.
struct Advising {
  std::shared_ptr<const MemoryAdvice> memory_advice;
};

/// The state and the parts of an engine. Functions are grouped by the file that defines them.
struct EngineBase::Impl : RunningStep, Counters, StepTimes, Advising {
  struct Agreed;
  /// Checks the configuration and the plan (the parallelisms to combine), and stores both in an Agreed. Then calls the
  /// constructor below, which builds everything.
  Impl(PipelineModule module, const InitializeArgs& args);
  Impl(const Agreed& agreed, PipelineModule& module, const InitializeArgs& args);
  ~Impl() { close(); }

  // Construction; defined in engine.cpp
  void choose_optimizers(const InitializeArgs& args);  // takes the program's optimizers, or makes the config's
  void choose_schedules(const InitializeArgs& args);   // makes a schedule for each optimizer, or none
  void start(const InitializeArgs& args);              // hooks, ZeRO, data loader, reports
  zero::ExpertParameters expert_parameters_of(const parallel::Mesh* mesh);  // experts that only some ranks hold
  void make_loader(const InitializeArgs& args);                             // the loader of training_data
  /// Number of replicas, which run different micro-batches.
  int replicas() const { return group->size() / context_ranks; }
  /// True if replica r runs micro-batches r, r + replicas(), ...; false if it runs consecutive ones.
  bool are_interleaved() const { return stage() >= 2 || !config.managed_gradient_accumulation; }
  parallel::StepReplicas numbering() const { return {replicas(), int(accumulation), are_interleaved()}; }
  /// ZeRO's stage; 0 without ZeRO.
  int stage() const { return zero ? zero->stage() : 0; }
  void check_open(const char* call) const;     // Error when the engine is closed, or a backward has failed
  void check_unsplit(const char* call) const;  // Error when the model is cut
  /// Logs a message on rank 0.
  void say(const std::string& text) const {
    if (world.rank() == 0) log(text);
  }
  /// Finishes pending work and removes the hooks; errors are ignored.
  void close() noexcept;

  // One forward and backward; defined in backward.cpp
  void watch();                                         // installs the hooks below
  void wrap_blocks();                                   // runs the model's blocks as activation checkpoints
  void before_forward();                                // starts the random stream and timing
  void notice_end_of_loop();                            // warns if a DataLoader's loop has ended within a step
  void after_forward();                                 // ends timing
  void gradient_arrives();                              // called at the first gradient of a backward
  void check_backward(int64_t tokens) const;            // Error when a backward is not expected
  void backward(const Variable& loss, int64_t tokens);  // scales the loss, then calls pass()
  /// Runs the backward of a micro-batch from `root`, the scaled loss. value: the loss without the scaling.
  void pass(const Variable& root, const Tensor& value, int64_t tokens);
  Variable scaled_by_factor(const Variable& loss) const;
  void set_factor(double factor);  // sets `factor`; Error if other losses of the step had another
  double own_factor() const;       // factor that this engine applies to a loss
  /// True if the next step() updates the parameters.
  bool is_boundary() const { return !config.managed_gradient_accumulation || (micro_steps + 1) % accumulation == 0; }
  /// True outside of no_sync() while no micro-batch of the coming step has run: its data may be loaded in advance.
  bool is_between_steps() const {
    return micros.empty() && pending == 0 && micro_steps % accumulation == 0 && no_sync_depth == 0;
  }
  int64_t micro_batch(int64_t ahead = 0) const;  // number of the next micro-batch, or of the one `ahead` places later
  /// Seeds the random numbers of a micro-batch, and skips the first `calls` of them: loading the micro-batch's data has
  /// used these already.
  void begin_random(int64_t micro_batch, uint64_t calls = 0);
  template <class T> T cast(const T& input) const {  // casts to the parameters' dtype if auto_cast is on
    return auto_cast && is_other_dtype(input) ? input.to(dtype) : input;
  }
  bool low_precision() const { return dtype != f32; }  // true if parameters have a 16-bit dtype
  /// True if parameters have a 16-bit dtype, and `input` is a floating-point tensor of another dtype.
  template <class T> bool is_other_dtype(const T& input) const {
    return low_precision() && input.defined() && is_floating(input.dtype()) && input.dtype() != dtype;
  }
  void forget();  // drops the gradients and state of the current step

  // Whole steps and evaluation; defined in batch.cpp
  pipeline::Data with_cast(const pipeline::Data& data) const;  // casts the inputs of each sample
  /// Returns the data of a micro-batch. calls: if not null, receives the number of random calls that `data` made.
  pipeline::Sample sample(const pipeline::Data& data, int64_t micro_batch, uint64_t* calls = nullptr) const;
  MicroBatch draw(const pipeline::Data& data, int64_t number) const;  // sample() with its number of tokens
  /// Runs forward, and returns the loss (or the value of `measure`). of_none: without targets; the loss is 0.
  Variable mean_loss(const pipeline::Sample& sample, const pipeline::Loss* measure, bool of_none);
  /// Runs forward, and returns the loss summed over `tokens` targets; if their number is unknown (-1), the mean loss.
  Variable run(const pipeline::Sample& sample, const pipeline::Loss* measure, int64_t tokens = -1);
  std::vector<MicroBatch> draw_ahead(const pipeline::Data& data) const;  // micro-batches of the coming step
  /// Runs a step of train_batch(), records it, or does what a replay leaves to the host.
  void train(const pipeline::Data& data, std::vector<MicroBatch> ahead, parallel::Mode mode = parallel::Mode::eager);
  void act(const parallel::StepAction& a);  // executes an action of the step's list
  void end_micro_batch();                   // counts a micro-batch, or all that run_schedule() ran
  void check_step() const;                  // Error when step() is not expected
  /// Runs forward and backward of all micro-batches with pipeline stages or tensor parallelism.
  void run_schedule(const pipeline::Data& data, const std::vector<MicroBatch>& ahead);
  /// Implements eval_batches() for engines that use neither pipeline stages nor tensor parallelism.
  std::vector<double> eval_unsplit(const pipeline::Data& data, int micro_batches, const pipeline::Loss* measure,
                                   int values);

  // The update at the end of a step; defined in step.cpp
  void step(std::optional<double> metric);  // EngineBase::step()
  bool wants_metric() const;                // true if a schedule follows a metric
  zero::NonFinite nonfinite() const;        // what to do with gradients that are not finite
  zero::StepOptions step_options();         // scaling and clipping of the coming update
  void begin_update();                      // sets `now.options` and what report() needs
  void end_update();                        // advances schedules
  /// Calls fn. After an exception the gradients of the step cannot be used.
  template <class Fn> void guarded(const Fn& fn) {
    try {
      fn();
    } catch (...) {
      micros.clear(), factor.reset();
      failed = true;
      throw;
    }
  }
  void gather_losses();  // loss and number of tokens of the step, over all ranks
  /// Returns the elementwise sum of the ranks' vectors `mine`.
  std::vector<double> sum_of_ranks(const std::vector<double>& mine, const char* tag) const;
  void call_participants();                                           // Participant::after_step()
  void report(const Step& step);                                      // counts and prints
  std::string memory_text();                                          // the report of memory_breakdown
  std::vector<double> learning_rates() const;                         // learning rates of all groups of all optimizers
  double loss_scale() const { return scaler ? scaler->scale() : 1; }  // 1 without fp16

  // Checkpoints; defined in save.cpp
  checkpoints::Contents contents(const SaveArgs& args);
  /// Returns the tensors of model and optimizer that this rank saves, except those named in `without`.
  std::vector<checkpoints::Piece> pieces(const std::set<std::string>& without);
  /// False if this rank has no parameters to save.
  bool has_state() const { return !part || !part->nothing; }
  /// Adds the state of a participant to the tensors to be loaded. Returns false if the checkpoint has none of it.
  bool want_state_of(const Participating& one, const checkpoints::Info& info, std::vector<checkpoints::Piece>& wanted);
  checkpoints::Numbers own_numbers() const;                                  // numbers of the optimizer
  std::optional<Loaded> load(const std::string& dir, const LoadArgs& args);  // EngineBase::load_checkpoint()
  /// Restores counters, schedules, loss scale, random state and the position in the data.
  void load_numbers(const checkpoints::Loaded& found, const LoadArgs& args, bool with_optimizer);
  std::map<std::string, double> program_numbers() const;  // the program's settings that a checkpoint also contains

  const std::function<void(const std::string&)> log;  // prints the texts of say()
  optim::GradScaler* const grad_scaler;
  dist::ProcessGroup& world;  // all ranks
  Config config;              // the configuration after resolve()
  const parallel::Plan plan;
  const std::unique_ptr<parallel::Mesh> own_mesh;        // made when the model is cut and no mesh was given
  const std::unique_ptr<ModelPart> part;                 // this rank's part of a model that is cut; null otherwise
  PipelineModule unsplit;                                // the model and its loss, if not cut
  decltype(nn::LayerList::loss_of_input) loss_of_input;  // of the model's layers(); empty if another loss is used
  nn::Module& model;                                     // the module that is trained
  dist::ProcessGroup* group = nullptr;                   // the ranks that sum gradients; the engine's replicas
  // Number of neighbouring ranks in `group` that share each micro-batch.
  int context_ranks = 1;
  // The ranks that share each micro-batch with this rank; null if `context_ranks` is 1.
  dist::ProcessGroup* sharers = nullptr;
  const DType product_dtype;  // EngineBase::product_dtype()
  int64_t accumulation = 1;
  DType dtype = f32;  // dtype of the parameters, to which inputs are cast
  bool auto_cast = false;
  std::vector<std::unique_ptr<optim::Optimizer>> own_optimizers;
  std::vector<optim::Optimizer*> optimizers;
  std::vector<std::unique_ptr<optim::Schedule>> own_schedules;
  std::vector<optim::Schedule*> schedules;  // one per optimizer, or none
  std::optional<optim::DynamicLossScaler> scaler;
  std::optional<parallel::ActivationCheckpoints> checkpoints;
  std::unique_ptr<zero::Zero> zero;    // null if the optimizer exchanges gradients itself
  std::unique_ptr<Exchange> exchange;  // null unless the optimizer exchanges gradients itself
  std::vector<Participating> participants;
  std::unique_ptr<Loader> loader;
  std::optional<data::RepeatingLoader<data::Example>> batches;  // endless loop over `loader`, for train_batch()
  std::optional<data::ToDevice> to_device;
  StepGraphs graphs;

  std::unique_ptr<checkpoints::Saver> saver;
  std::string saver_key;

  std::vector<std::pair<Variable, int>> gradient_hooks;
  std::vector<int> module_hooks;
  nn::Module::Calls model_calls;
};

}  // namespace lockstep::engine
