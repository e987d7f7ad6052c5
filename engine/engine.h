#pragma once
// The engine: training as DeepSpeed's configuration file describes it, around a model of one's own, under any plan of
// ranks. See docs/engine.md.
//
//   auto engine = engine::initialize(net, "ds_config.json");   // on every rank; under the launcher, or alone
//   for (auto& [x, y] : batches) {
//     engine.backward(cross_entropy(engine(x), y));            // micro-batch by micro-batch
//     engine.step();                                           // acts once every gradient_accumulation_steps
//   }
//
// A whole step in one call works under every plan. In stages (pp) and slices (tp) a rank holds its part of the model:
// what it names in layers(), or a list of layers of which each rank builds its own.
//
//   auto engine = engine::initialize(net, {.config = "ds_config.json", .mesh = &mesh});
//   const double loss = engine.train_batch(data);              // all micro-batches, clip, update, next learning rate
//
//   engine::PipelineModule module{.layers = {pipeline::layer<nn::Linear>({.in = 10, .out = 20}), ...}, .loss_fn =
//   loss}; auto engine = engine::initialize(module, {.config = "ds_config.json"});
//
// Bits: for a given train_batch_size, micro-batch and seed, parameters are the same bit for bit for any power of two of
// ranks, any stage of ZeRO, any accumulation, any number of stages, schedule and cut: micro-batch m of step s has the
// same data, dropout and place in every sum, whoever computes it. Slices and parts of sequences split sums: near them.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/autocast.h"
#include "data/loader.h"
#include "dist/process_group.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/config.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "parallel/mesh.h"
#include "parallel/onebit/optimizer.h"
#include "parallel/tensor/apply.h"
#include "pipeline/engine.h"
#include "tensor/at_end.h"
#include "zero/zero.h"

namespace lockstep::engine {

using Loader = data::DataLoader<data::Example>;

struct ConfigSource : SourceOf<Config> {
  using SourceOf::SourceOf;
  Config read() const { return config ? *config : read_config(text); }
};

/// What DeepSpeed's programs take from the command line.
struct Arguments {
  bool deepspeed = false;  ///< has no effect, as there
  std::string deepspeed_config;
  int local_rank = -1;  ///< some launchers give it; the environment counts
};
/// --deepspeed, --deepspeed_config FILE and --local_rank N for a CLI::App.
template <class App> void add_config_arguments(App& app, Arguments& arguments) {
  app.add_flag("--deepspeed", arguments.deepspeed, "accepted, without effect: the config says what is done");
  app.add_option("--deepspeed_config", arguments.deepspeed_config, "configuration file");
  app.add_option("--local_rank", arguments.local_rank, "accepted, as launchers give it; the environment counts");
}

/// Whether a launcher (ours, torchrun, mpirun, srun) made this process a rank.
bool is_launched();
/// Joins the job that the environment names, unless that was done. Without a launcher: alone, and a notice says so.
dist::ProcessGroup& init_distributed();

/// Something of the program's own, which must be there while the engine is used (they may be destroyed in any order);
/// or a function that makes it on every rank.
template <class T, class From> struct GivenOrMade {
  using Make = std::function<std::unique_ptr<T>(From& from)>;
  GivenOrMade() = default;
  GivenOrMade(T* own) : given(own) {}  // NOLINT: implicit on purpose
  template <class F> GivenOrMade(F fn) requires std::is_invocable_v<F&, From&> : make(std::move(fn)) {}  // NOLINT
  bool is_none() const { return !given && !make; }

  T* given = nullptr;
  Make make = {};
};

/// A model, and how stages have it.
struct PipelineModule {
  /// Its own layers() are cut, and its own loss is taken where loss_fn is empty.
  std::shared_ptr<nn::Module> model = {};
  std::vector<pipeline::LayerSpec> layers = {};  ///< in place of a model
  pipeline::Loss loss_fn = {};
  int num_stages = 0;                                      ///< 0: pipeline.stages of the config
  std::string partition_method = {};                       ///< empty: pipeline.partition
  std::optional<int> activation_checkpoint_interval = {};  ///< not given: pipeline.activation_checkpoint_interval
  /// Where each virtual stage begins, and the number of layers, in place of partition_method.
  std::vector<int> bounds = {};
  std::optional<pipeline::Schedule> schedule = {};  ///< one of your own, in place of pipeline.schedule
  std::optional<DType> autocast = {};               ///< f16 or bf16: forwards and losses run under Autocast
  bool recompute = false;  ///< stages of a model: layers that repeat keep only what goes in, and run again in backward
  /// In place of the model's own (DataParallel, say), where it runs as it is.
  std::function<Variable(const Tensor& input)> forward = {};
  /// Of how many targets the loss is the mean, where the model runs as it is: a step's loss and gradient are then means
  /// over the targets of all micro-batches, which may have different numbers of them.
  std::function<int64_t(const std::vector<Tensor>& targets)> tokens = {};
};

struct InitializeArgs {
  /// In place of the config's. A function gets what this rank trains, a stage or the model; parameters have the names
  /// of the whole model.
  GivenOrMade<optim::Optimizer, nn::Module> optimizer = {};
  data::DatasetPtr<data::Example> training_data = nullptr;
  GivenOrMade<optim::Schedule, optim::Optimizer> lr_scheduler = {};  ///< of `optimizer`, in place of the config's
  ConfigSource config = {};
  const Arguments* args = nullptr;      ///< their config, where `config` is not given
  dist::ProcessGroup* group = nullptr;  ///< all ranks of the job; default: dist::world()
  /// In its place: who is where; must be there while the engine is used. Ranks along cp share each sample, those along
  /// ep experts (moe::Layer on mesh->ep()). Default: copies x stages of all ranks.
  const parallel::Mesh* mesh = nullptr;
  int loader_workers = 0;                            ///< threads that make batches of training_data
  std::function<void(const std::string&)> log = {};  ///< what rank 0 has to say; empty: lines on stderr
  std::optional<DType> autocast = {};                ///< f16 or bf16: engine(x) runs under Autocast
  optim::GradScaler* grad_scaler = nullptr;          ///< scales the loss where fp16 does not (autocast)
  /// train_batch() on a CUDA device records a step of micro-batches of these shapes when they come the second time, and
  /// replays it from then on (docs/cuda.md). Same bits.
  bool graphs = true;
  std::optional<tensor_parallel::TensorParallel> sliced = {};  ///< what apply() did to the model over mesh->tp()
};

struct SaveArgs {
  std::string tag = {};                            ///< empty: global_step<N>
  data::Json client_state = data::Json::Object();  ///< anything; load_checkpoint() gives it back
  bool save_latest = true;                         ///< it is what load_checkpoint() takes by default
  bool exclude_frozen_parameters = false;
  bool async = false;  ///< write while training goes on
};
struct LoadArgs {
  std::string tag = {};            ///< empty: the latest
  bool load_module_strict = true;  ///< the checkpoint must have all of the model, and nothing else
  bool load_optimizer_states = true, load_lr_scheduler_states = true;
  bool load_module_only = false;  ///< neither these, nor counters, random numbers and the place in the data
};
using checkpoints::Loaded;

/// A loss that is the mean over so many targets as two numbers that can be added up over batches of different numbers
/// of them: the sum and the number, both 0 for the mean of none. Of a number that is not known, -1, the loss and -1.
Variable sum_and_tokens(const Variable& mean, int64_t tokens);

/// The engine, but for the model's own type.
class EngineBase {
  void enter_no_sync();
  void leave_no_sync();

 public:
  /// Collective. Error on all ranks for a configuration and a plan that cannot be (check_plan.h).
  EngineBase(PipelineModule module, InitializeArgs args);
  EngineBase(EngineBase&&) noexcept;
  ~EngineBase();  ///< close(), without errors

  /// A step: gradient_accumulation_steps micro-batches of each copy of the model, and the update. Gives back their mean
  /// loss.
  double train_batch(const pipeline::Data& data, std::optional<double> metric = {});
  /// With the next micro-batches of training_data: an Example's input for the model, its target for the loss.
  double train_batch(std::optional<double> metric = {});
  /// The mean loss of so many micro-batches of each copy (0: as many as in training), of any size; without gradients.
  /// With PipelineModule::tokens the mean over all of their targets.
  double eval_batch(const pipeline::Data& data, int micro_batches = 0);
  /// What `measure` gives for each of them (default: the loss), so many `values`, in the order of the micro-batches;
  /// the same on all ranks.
  std::vector<double> eval_batches(const pipeline::Data& data, int micro_batches, const pipeline::Loss& measure = {},
                                   int values = 1);

  // Steps of one's own, of a model that runs as it is.
  /// Gradients of a micro-batch's mean loss (of this rank's part of it). Those of a step are averaged over all
  /// micro-batches of all ranks.
  void backward(const Variable& loss);
  /// The same for a loss that is a sum over `tokens` tokens: a step's gradient is that of the mean over all tokens,
  /// also where micro-batches and ranks have different numbers of them.
  void backward(const Variable& loss_sum, int64_t tokens);
  /// The loss times what this engine wants to see in it, for loss.backward() by the caller.
  Variable scale(const Variable& loss);

  /// At a boundary: clip, update, next learning rate. Before it nothing. Call it after every backward
  /// (managed_gradient_accumulation false: at boundaries only). `metric` is for ReduceLROnPlateau: the mean over ranks
  /// counts, so all ranks give one, or none does.
  void step(std::optional<double> metric = {});
  bool wants_metric() const;  ///< whether step() does
  /// Whether the step() that comes next updates.
  bool is_gradient_accumulation_boundary() const;
  /// Forgets the gradients since the last boundary.
  void zero_grad();

  /// While it lives backwards sum at this rank only (stages 0 and 1); the accumulation does so by itself.
  using NoSync = While<EngineBase, &EngineBase::enter_no_sync, &EngineBase::leave_no_sync>;
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  void train(bool training = true);
  void eval() { train(false); }
  /// Gives all copies the first one's buffers, such as batch norm's statistics, which are those of a checkpoint.
  /// Evaluations by eval_batch() and eval_batches() begin with it; one of your own calls it on all ranks.
  void sync_buffers();

  /// All ranks together, at a boundary. Tensors by their names, so any number of ranks and any stage can load them;
  /// with counters, schedule, loss scale, random numbers and the place in training_data.
  void save_checkpoint(const std::string& dir, const SaveArgs& args = {});
  /// Nothing, with a warning, when there is no checkpoint in `dir`.
  std::optional<Loaded> load_checkpoint(const std::string& dir, const LoadArgs& args = {});
  /// The whole model in its dtype as one safetensors file, by rank 0. False, with a warning, at stage 3 without
  /// stage3_gather_16bit_weights_on_model_save. Collective.
  bool save_16bit_model(const std::string& dir, const std::string& name = "model.safetensors");
  /// Waits until a checkpoint that is being written is there.
  void wait_for_checkpoint();

  /// The whole model's tensors and the optimizer's state on rank 0 of all, as one process would have them. Collective,
  /// and not small: save_checkpoint() is for large models.
  struct WholeState {
    nn::State model;
    optim::OptimizerState optimizer;
  };
  WholeState whole_state();

  // What the config says
  const Config& config() const;
  int64_t train_batch_size() const;
  int64_t train_micro_batch_size_per_gpu() const;
  int64_t gradient_accumulation_steps() const;
  int64_t steps_per_print() const;  ///< 0: never

  // Where training is
  int64_t global_steps() const;  ///< boundaries, also those that were skipped
  int64_t micro_steps() const;
  int64_t skipped_steps() const;  ///< boundaries at which a gradient had overflowed
  int64_t global_samples() const;
  double loss_scale() const;  ///< 1 without fp16
  double train_loss()
      const;  ///< of the last boundary: the mean over its micro-batches (tokens) at all ranks. NaN when unknown
  double get_global_grad_norm() const;  ///< of the last boundary, before clipping; NaN when it was skipped
  std::vector<double> get_lr() const;   ///< of each parameter group
  void set_lr(double lr);
  /// In place of gradient_clipping, from the next boundary on.
  void set_gradient_clipping(double max_norm);
  /// Which of the step's train_batch_size / train_micro_batch_size_per_gpu micro-batches this rank does next; the same
  /// where ranks share sequences.
  int64_t micro_batch() const;

  /// What this rank trains: its stage, or the model.
  nn::Module& module() const;
  /// Whether stages or slices make this rank's part of the model; otherwise it runs as it is.
  bool in_parts() const;
  /// How many steps of train_batch() were replays of graphs, or why none was.
  std::string graphs() const;
  pipeline::Engine& pipeline() const;  ///< Error where the model runs as it is
  const parallel::Plan& plan() const;
  dist::ProcessGroup& group() const;  ///< ranks that sum gradients: copies, and those that share their samples
  int global_rank() const;
  optim::Optimizer& optimizer() const;
  optim::Schedule* lr_scheduler() const;  ///< null when there is none
  Loader* training_dataloader() const;    ///< null without training_data
  zero::Zero& zero() const;               ///< Error when the optimizer is a 1-bit one
  onebit::Optimizer* onebit()
      const;  ///< null when it is another. Before evaluation 0/1 Adam's ranks want its synchronize()

  /// The comms_logger's table, with what ranks waited for each other. All ranks together.
  std::string comms_summary(bool show_straggler = true);
  /// Ends it: what is being written is waited for, and nothing else may be called.
  void close();

  struct Impl;

 protected:
  /// Runs a forward, and says more when it fails over its inputs' dtype.
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

/// One loss of several models: the loss times a scale that all of these engines then know. Call backward() on the
/// result, then step() of each. Without loss scaling plain loss.backward() will do.
Variable scale(const Variable& loss, const std::vector<EngineBase*>& engines);

/// Calls the model: engine(x) is model(x), with inputs cast when the config says so.
template <class M> class Engine : public EngineBase {
 public:
  Engine(M& model, InitializeArgs args)
      : EngineBase({.model = {std::shared_ptr<void>(), &model}}, std::move(args)), model_(&model) {}
  M& module() const { return *model_; }

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

template <class M> struct Initialized {
  Engine<M> engine;
  optim::Optimizer& optimizer;
  Loader* training_dataloader;
  optim::Schedule* lr_scheduler;
};

/// Collective. The model's parameters become what the config says (dtype, shards), and rank 0's everywhere. What is
/// given must be there while the engine is used. No config, and two of them, are Errors.
template <class M> Initialized<M> initialize(M& model, InitializeArgs args) {
  Engine<M> engine(model, std::move(args));
  optim::Optimizer& optimizer = engine.optimizer();
  Loader* const loader = engine.training_dataloader();
  optim::Schedule* const schedule = engine.lr_scheduler();
  return {std::move(engine), optimizer, loader, schedule};
}
template <class M> Engine<M> initialize(M& model, ConfigSource config) {
  return Engine<M>(model, {.config = std::move(config)});
}
template <class M> Engine<M> initialize(M& model, optim::Optimizer& optimizer, ConfigSource config) {
  return Engine<M>(model, {.optimizer = &optimizer, .config = std::move(config)});
}

/// Of a list of layers, or of a model that the engine keeps.
inline EngineBase initialize(PipelineModule module, InitializeArgs args) {
  return EngineBase(std::move(module), std::move(args));
}

}  // namespace lockstep::engine
