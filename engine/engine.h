#pragma once
// The engine: trains a model as a DeepSpeed configuration file describes, with any combination of data, pipeline,
// tensor, context and expert parallelism. See docs/engine.md.
//
//   auto engine = engine::initialize(net, "ds_config.json");   // on every rank; under a launcher, or alone
//   for (auto& [x, y] : batches) {
//     engine.backward(cross_entropy(engine(x), y));            // micro-batch by micro-batch
//     engine.step();                                           // updates every gradient_accumulation_steps calls
//   }
//
// train_batch() runs a whole step, under every combination. With pipeline stages (pp) or tensor parallelism (tp), each
// rank holds only its part of the model. The stages divide the layers() of a model, or a list from which each stage
// builds its own layers.
//
//   auto engine = engine::initialize(net, {.config = "ds_config.json", .mesh = &mesh});
//   const double loss = engine.train_batch(data);              // all micro-batches, clip, update, next learning rate
//
//   engine::PipelineModule module{.layers = {pipeline::layer<nn::Linear>({.in = 10, .out = 20}), ...},
//                                 .loss_fn = loss};           // pipeline_module.h
//   auto engine = engine::initialize(module, {.config = "ds_config.json"});
//
// Reproducibility: for a given train_batch_size, micro-batch size and seed, parameters are bit-identical for any number
// of ranks that is a power of two, any ZeRO stage, any gradient accumulation, any pipeline schedule and any division
// of the layers into stages. Micro-batch m of step s always has the same data, dropout and place in every sum. Tensor
// and context parallelism split the sums inside a layer, so their results agree only up to rounding.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/autocast.h"
#include "base/at_end.h"
#include "checkpoint/checkpoint.h"
#include "data/loader.h"
#include "dist/process_group.h"
#include "engine/config.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "parallel/mesh.h"
#include "pipeline/sample.h"
#include "zero/zero.h"

namespace lockstep::pipeline {
class PipelineEngine;
}
namespace lockstep::tensor_parallel {
class TensorParallel;
}

namespace lockstep::engine {

class Exchange;
class Participant;
struct PipelineModule;

/// The data loader of InitializeArgs::training_data.
using Loader = data::DataLoader<data::Example>;

/// The source of the engine's configuration.
struct ConfigSource : SourceOf<Config> {
  using SourceOf::SourceOf;
  /// Returns the given Config, or the result of read_config() for the given text.
  Config read() const { return config ? *config : read_config(text); }
};

/// The command-line arguments of DeepSpeed's programs.
struct Arguments {
  bool deepspeed = false;  ///< has no effect, as in DeepSpeed
  std::string deepspeed_config;
  int local_rank = -1;  ///< passed by some launchers; ignored in favour of the environment
};
/// Adds --deepspeed, --deepspeed_config FILE and --local_rank N to a CLI::App.
template <class App> void add_config_arguments(App& app, Arguments& arguments) {
  app.add_flag("--deepspeed", arguments.deepspeed, "accepted, without effect: the config decides");
  app.add_option("--deepspeed_config", arguments.deepspeed_config, "configuration file");
  app.add_option("--local_rank", arguments.local_rank, "accepted from launchers and ignored; the environment decides");
}

/// True if a launcher (ours, torchrun, mpirun, srun) started this process as a rank.
bool is_launched();
/// Joins the job that the environment variables describe; later calls return the same group. Without a launcher, the
/// process becomes the only rank of its job, and a note on stderr says that it trains alone.
dist::ProcessGroup& init_distributed();

/// Either a pointer to a T that the caller owns, or a function that every rank calls to make its T. The caller's T must
/// exist while the engine is used. It may be destroyed before or after the engine.
template <class T, class From> struct GivenOrMade {
  /// The function that makes the T: an optimizer from a module, or a schedule from an optimizer.
  using Make = std::function<std::unique_ptr<T>(From& from)>;
  GivenOrMade() = default;
  GivenOrMade(T* own) : given(own) {}  // NOLINT: implicit on purpose
  template <class F> GivenOrMade(F fn) requires std::is_invocable_v<F&, From&> : make(std::move(fn)) {}  // NOLINT
  /// True if neither an object nor a function was given.
  bool is_none() const { return !given && !make; }

  T* given = nullptr;
  Make make = {};
};

/// The result of tensor_parallel::apply() on the model, over mesh->tp(). Empty: the ranks do not cut the layers.
struct Sharded : std::shared_ptr<const tensor_parallel::TensorParallel> {
  Sharded() = default;
  Sharded(tensor_parallel::TensorParallel model);  // NOLINT: implicit on purpose
};

/// Arguments of initialize().
struct InitializeArgs {
  /// Replaces the config's optimizer. A function gets the module that this rank trains: the model, or its pipeline
  /// stage. The stage's parameters have the same names as in the whole model.
  GivenOrMade<optim::Optimizer, nn::Module> optimizer = {};
  /// The data set for training_dataloader(), and for train_batch() when it is called without data.
  data::DatasetPtr<data::Example> training_data = nullptr;
  /// The schedule of the optimizer's learning rate; replaces the config's scheduler.
  GivenOrMade<optim::Schedule, optim::Optimizer> lr_scheduler = {};
  /// The configuration: a file, JSON text, or a Config.
  ConfigSource config = {};
  const Arguments* args = nullptr;      ///< command line; args->deepspeed_config is read if `config` is not given
  dist::ProcessGroup* group = nullptr;  ///< all ranks of the job; default: dist::world()
  /// Replaces `group` by a mesh of ranks, which must exist while the engine is used. Context-parallel ranks (cp) share
  /// each sample. Expert-parallel ranks (ep) hold different experts of a moe::MoeLayer. Null: ranks are only
  /// divided into replicas and pipeline stages.
  const parallel::Mesh* mesh = nullptr;
  int loader_workers = 0;    ///< threads that assemble batches of training_data
  data::Sampler order = {};  ///< order of training_data in an epoch, on all ranks together; default: shuffled
  /// Called on rank 0 with each message (notes, warnings, progress). Default: prints the message as a line on stderr.
  std::function<void(const std::string&)> log = {};
  std::optional<DType> autocast = {};        ///< f16 or bf16: engine(x) runs under Autocast
  optim::GradScaler* grad_scaler = nullptr;  ///< scales the loss under autocast, without fp16.enabled
  /// On a CUDA device, train_batch() captures a step as a graph when its shapes occur for the second time, and replays
  /// it from then on (docs/cuda.md). The results are bit-identical.
  bool graphs = true;
  Sharded sharded = {};  ///< the model's layers, if tensor-parallel ranks have cut them
};

/// Options of save_checkpoint().
struct SaveArgs {
  std::string tag = {};                            ///< name of the checkpoint's folder; empty: global_step<N>
  data::Json client_state = data::Json::Object();  ///< any JSON; load_checkpoint() returns it
  bool save_latest = true;                         ///< true: load_checkpoint() loads this checkpoint by default
  bool exclude_frozen_parameters = false;          ///< true: leave frozen parameters out
  bool async = false;                              ///< true: write while training continues
};
/// Options of load_checkpoint().
struct LoadArgs {
  std::string tag = {};            ///< tag of the checkpoint to load; empty: the latest
  bool load_module_strict = true;  ///< true: Error unless the checkpoint has exactly the model's tensors
  bool load_optimizer_states = true, load_lr_scheduler_states = true;
  bool load_module_only = false;  ///< true: no optimizer, scheduler, counters, random state or position in the data
};
/// The result of load_checkpoint(): the manifest, and names of tensors that were not used.
using checkpoints::Loaded;

/// Turns the mean loss over `tokens` targets into a tensor of two numbers that can be added up over batches of
/// different sizes: the sum of the loss and the number of targets. Both are 0 for no targets. tokens = -1 (unknown)
/// returns the loss and -1.
Variable sum_and_tokens(const Variable& mean, int64_t tokens);

/// The engine without the type of the model.
class EngineBase {
  void enter_no_sync();
  void leave_no_sync();

 public:
  /// Builds the engine. Collective. Error on all ranks if the config does not suit this division of the ranks.
  EngineBase(PipelineModule module, InitializeArgs args);
  EngineBase(std::shared_ptr<nn::Module> model, InitializeArgs args);
  EngineBase(EngineBase&&) noexcept;
  ~EngineBase();  ///< calls close(), and ignores its errors

  /// One step: gradient_accumulation_steps micro-batches on each replica, and the update. Returns the mean loss of all
  /// micro-batches. `metric`: see step(). Collective.
  double train_batch(const pipeline::Data& data, std::optional<double> metric = {});
  /// Like train_batch(data), but takes the next micro-batches of InitializeArgs::training_data. The model gets
  /// the inputs of an Example, the loss its targets.
  double train_batch(std::optional<double> metric = {});
  /// Evaluates `micro_batches` micro-batches on each replica (0: gradient_accumulation_steps), and returns their mean
  /// loss. Micro-batches may have any size. With PipelineModule::tokens, returns the mean over all targets. Collective.
  double eval_batch(const pipeline::Data& data, int micro_batches = 0);
  /// Computes `measure` (default: the loss), a tensor of `values` numbers, for each micro-batch. All ranks return the
  /// numbers of all micro-batches, in the order of the micro-batches. Collective.
  std::vector<double> eval_batches(const pipeline::Data& data, int micro_batches, const pipeline::Loss& measure = {},
                                   int values = 1);

  // For training loops of your own, without pipeline stages and tensor parallelism.
  /// Runs backward from the mean loss of a micro-batch, or of this rank's part if ranks share micro-batches. The
  /// gradients of a step are averaged over all micro-batches of all ranks.
  void backward(const Variable& loss);
  /// Runs backward from a loss that is a sum over `tokens` tokens. The step then follows the gradient of the mean loss
  /// over all tokens, even if micro-batches and ranks have different numbers of tokens.
  void backward(const Variable& loss_sum, int64_t tokens);
  /// Returns the loss multiplied by the engine's factor, which includes the loss scale. Call scale(loss).backward()
  /// instead of engine.backward(loss).
  Variable scale(const Variable& loss);

  /// Call it after every backward. At a boundary (the last micro-batch of a step) it clips, updates, and sets the next
  /// learning rate; otherwise it does nothing. With managed_gradient_accumulation false, call it at boundaries only.
  /// `metric` is for ReduceLROnPlateau, which takes the mean over ranks: pass it on all ranks, or on none.
  void step(std::optional<double> metric = {});
  bool wants_metric() const;  ///< true if a scheduler needs `metric`
  /// True if the next call of step() will update the parameters.
  bool is_gradient_accumulation_boundary() const;
  /// Drops the gradients that the current step has accumulated so far.
  void zero_grad();

  /// While a NoSync lives, backward sums gradients on this rank only (ZeRO stages 0 and 1). Gradient accumulation does
  /// not need it: the engine does the same by itself in all micro-batches of a step but the last.
  using NoSync = While<EngineBase, &EngineBase::enter_no_sync, &EngineBase::leave_no_sync>;
  /// Returns a NoSync of this engine.
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  /// Switches the model to training or evaluation mode.
  void train(bool training = true);
  void eval() { train(false); }  ///< train(false)
  /// Copies replica 0's buffers (batch norm's statistics) to all replicas. Checkpoints store only replica 0's buffers.
  /// eval_batch() and eval_batches() call sync_buffers(); before an evaluation loop of your own, call it on all ranks.
  void sync_buffers();

  /// Saves a checkpoint; call it between steps. Collective. Tensors are stored by name, so any number of ranks and any
  /// ZeRO stage can load them. Also saved: counters, schedules, loss scale, random state and the position in
  /// training_data.
  void save_checkpoint(const std::string& dir, const SaveArgs& args = {});
  /// Loads a checkpoint. Returns nullopt, with a warning, when `dir` holds no checkpoint. Collective.
  std::optional<Loaded> load_checkpoint(const std::string& dir, const LoadArgs& args = {});
  /// Rank 0 writes the whole model in its dtype as one safetensors file. Returns false, with a warning, at ZeRO stage 3
  /// without stage3_gather_16bit_weights_on_model_save. Collective.
  bool save_16bit_model(const std::string& dir, const std::string& name = "model.safetensors");
  /// Waits for a checkpoint that is being written.
  void wait_for_checkpoint();

  /// The state of the whole model and of its optimizer, as a single process would have it.
  struct FullState {
    nn::State model;
    optim::OptimizerState optimizer;
  };
  /// Returns the whole state on rank 0, and an empty one on the other ranks. Collective. Rank 0 needs memory for the
  /// whole state; for large models, use save_checkpoint().
  FullState full_state();

  // The configuration in effect, after all defaults and "auto" values are filled in.
  const Config& config() const;
  /// Samples per step, over all ranks.
  int64_t train_batch_size() const;
  /// Samples per micro-batch.
  int64_t train_micro_batch_size_per_gpu() const;
  /// Micro-batches per step and replica.
  int64_t gradient_accumulation_steps() const;
  int64_t steps_per_print() const;  ///< steps between two printed lines; 0: never

  // Progress of training
  int64_t global_steps() const;  ///< optimizer steps so far, skipped ones included
  /// Micro-batches of this rank so far.
  int64_t micro_steps() const;
  int64_t skipped_steps() const;  ///< steps that were skipped, because gradients had an overflow
  /// Samples of all ranks so far.
  int64_t global_samples() const;
  double loss_scale() const;  ///< current loss scale; 1 without fp16
  /// Mean loss of the last step, over the micro-batches (or tokens) of all ranks; NaN if unknown.
  double train_loss() const;
  double get_global_grad_norm() const;  ///< norm before clipping in the last step; NaN if the step was skipped
  std::vector<double> get_lr() const;   ///< learning rate of each parameter group
  /// Sets the learning rate of all parameter groups.
  void set_lr(double lr);
  /// Sets the largest gradient norm (gradient_clipping of the config; 0: no limit) from the next update on.
  void set_gradient_clipping(double max_norm);
  /// Index of this rank's next micro-batch among the train_batch_size / train_micro_batch_size_per_gpu micro-batches of
  /// the step. Ranks that share sequences have the same index.
  int64_t micro_batch() const;

  /// The module that this rank trains: the model, or this rank's part of it (pipeline stage, tensor-parallel shard).
  nn::Module& module() const;
  /// True if each rank holds only a part of the model, by pipeline stages or tensor parallelism.
  bool in_parts() const;
  /// The dtype of matrix products: that of the parameters if they have 16 bits, else Autocast's or f32.
  DType product_dtype() const;
  /// Returns a text that says how many steps of train_batch() were graph replays, or why none was.
  std::string graphs() const;
  pipeline::PipelineEngine& pipeline() const;  ///< Error when the model is not cut
  /// How the ranks are divided into replicas, pipeline stages, tensor-parallel ranks and so on.
  const parallel::Plan& plan() const;
  dist::ProcessGroup& group() const;  ///< ranks that sum gradients: replicas, and ranks that share samples
  /// Number of this rank among all ranks of the job.
  int global_rank() const;
  int local_rank() const;  ///< number of this rank among the ranks of its machine
  Device device() const;   ///< the device of this rank's parameters, to which inputs belong
  /// The optimizer; the first one if there are several.
  optim::Optimizer& optimizer() const;
  optim::Schedule* lr_scheduler() const;  ///< null without one
  Loader* training_dataloader() const;    ///< null without training_data
  zero::Zero& zero() const;               ///< Error if the optimizer exchanges gradients itself, without ZeRO
  Exchange* exchange() const;             ///< set if the optimizer exchanges gradients itself; else null

  /// The participants: objects of extensions, which the engine calls in each step (participant.h).
  std::vector<Participant*> participants() const;
  /// Finishes pending writes. Only the destructor may be called afterwards.
  void close();

  struct Impl;

 protected:
  /// Lives during one forward of the model: casts the inputs, and adds a hint to errors that an input's dtype causes.
  class Forward {
   public:
    explicit Forward(EngineBase& engine);
    ~Forward();
    Tensor cast(const Tensor& input);
    Variable cast(const Variable& input);
    template <class T> T&& cast(T&& other) requires(!std::is_convertible_v<T, Variable>) {
      return std::forward<T>(other);
    }
    [[noreturn]] void explain(const Error& error) const;

   private:
    EngineBase& engine_;
    std::optional<Autocast> precise_;
    bool saw_other_dtype_ = false;
  };

  std::unique_ptr<Impl> impl_;
  friend Variable scale(const Variable& loss, const std::vector<EngineBase*>& engines);
};

/// Scales one loss that trains several models, each with its own engine. Each engine's own scale() would multiply by a
/// factor; this function uses the smallest of these factors. Call backward() on the result, then step() of each
/// engine. Without loss scaling, a plain loss.backward() works too.
Variable scale(const Variable& loss, const std::vector<EngineBase*>& engines);

/// An engine that is called like its model: engine(x) is model(x), with inputs cast if the config says so.
template <class M> class Engine : public EngineBase {
 public:
  Engine(M& model, InitializeArgs args)
      : EngineBase(std::shared_ptr<nn::Module>(std::shared_ptr<void>(), &model), std::move(args)), model_(&model) {}
  M& module() const { return *model_; }  ///< the model that was given

  template <class... Args> auto operator()(Args&&... args) {
    Forward forward(*this);
    try {
      if constexpr (requires(M & m) { m(forward.cast(std::forward<Args>(args))...); })
        return (*model_)(forward.cast(std::forward<Args>(args))...);
      else return model_->call(forward.cast(std::forward<Args>(args))...);
    } catch (const Error& error) { forward.explain(error); }
  }

 private:
  M* model_;
};

/// The result of initialize(), for structured bindings: the engine, its optimizer, data loader and schedule.
template <class M> struct Initialized {
  Engine<M> engine;
  optim::Optimizer& optimizer;
  Loader* training_dataloader;
  optim::Schedule* lr_scheduler;
};

/// Builds an engine for a model. Collective. Parameters get the dtype and sharding of the config, and rank 0's values.
/// Objects in `args` must outlive the use of the engine. Error unless exactly one config is given.
template <class M> Initialized<M> initialize(M& model, InitializeArgs args) {
  Engine<M> engine(model, std::move(args));
  optim::Optimizer& optimizer = engine.optimizer();
  Loader* const loader = engine.training_dataloader();
  optim::Schedule* const schedule = engine.lr_scheduler();
  return {std::move(engine), optimizer, loader, schedule};
}
/// Builds an engine for a model from a configuration only.
template <class M> Engine<M> initialize(M& model, ConfigSource config) {
  return Engine<M>(model, {.config = std::move(config)});
}
/// Builds an engine that trains a model with the caller's optimizer.
template <class M> Engine<M> initialize(M& model, optim::Optimizer& optimizer, ConfigSource config) {
  return Engine<M>(model, {.optimizer = &optimizer, .config = std::move(config)});
}

}  // namespace lockstep::engine
