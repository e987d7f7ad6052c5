#pragma once
// The engine: training as DeepSpeed's configuration file describes it, around a model of one's own. See docs/engine.md.
//
//   auto engine = engine::initialize(net, "ds_config.json");          // on every rank; under the launcher, or alone
//   for (auto& [x, y] : batches) {
//     engine.backward(cross_entropy(engine(x), y));                   // micro-batch by micro-batch
//     engine.step();                                                  // does something once every gradient_accumulation_steps
//   }
//
//   auto [engine, optimizer, loader, schedule] = engine::initialize(net, {.training_data = share(dataset), .config = "ds_config.json"});
//
// Bits: for a given train_batch_size, micro-batch and seed, parameters are the same bit for bit for any power of two of ranks, any
// stage of ZeRO, and any accumulation: micro-batch m of step s has the same data, dropout and place in every sum, whoever computes it.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "data/loader.h"
#include "dist/process_group.h"
#include "engine/config.h"
#include "nn/module.h"
#include "onebit/optimizer.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "parallel/mesh.h"
#include "zero/zero.h"

namespace lockstep::engine {

using Loader = data::DataLoader<data::Example>;

struct Part;

/// Where the config comes from: a file, JSON text, base64 of it, or a struct.
struct ConfigSource {
  ConfigSource() = default;
  ConfigSource(const char* source) : text(source) {}                        // NOLINT: implicit on purpose
  ConfigSource(std::string source) : text(std::move(source)) {}             // NOLINT
  ConfigSource(const data::Json& json) : text(json.dump()) {}               // NOLINT
  ConfigSource(Config made) : config(std::make_shared<Config>(std::move(made))) {}  // NOLINT
  bool is_given() const { return config || !text.empty(); }
  Config read() const { return config ? *config : read_config(text); }

  std::string text;
  std::shared_ptr<Config> config;
};

/// What DeepSpeed's programs take from the command line.
struct Arguments {
  bool deepspeed = false;         ///< has no effect, as there
  std::string deepspeed_config;
  int local_rank = -1;            ///< some launchers give it; the environment counts
};
/// --deepspeed, --deepspeed_config FILE and --local_rank N for a CLI::App.
template <class App>
void add_config_arguments(App& app, Arguments& arguments) {
  app.add_flag("--deepspeed", arguments.deepspeed, "accepted, without effect: the config says what is done");
  app.add_option("--deepspeed_config", arguments.deepspeed_config, "configuration file");
  app.add_option("--local_rank", arguments.local_rank, "accepted, as launchers give it; the environment counts");
}

/// Whether a launcher (ours, torchrun, mpirun, srun) made this process a rank.
bool is_launched();
/// Joins the job that the environment names, unless that was done. Without a launcher: alone, and a notice says so.
dist::ProcessGroup& init_distributed();

struct InitializeArgs {
  optim::Optimizer* optimizer = nullptr;           ///< in place of the config's
  std::vector<Variable> model_parameters = {};     ///< what the config's optimizer trains; empty: all that require grad
  data::DatasetPtr<data::Example> training_data = nullptr;
  optim::Schedule* lr_scheduler = nullptr;         ///< of `optimizer`, in place of the config's
  ConfigSource config = {};
  const Arguments* args = nullptr;                 ///< their config, where `config` is not given
  dist::ProcessGroup* group = nullptr;             ///< of the ranks that share the work; default: all
  const parallel::Mesh* mesh = nullptr;            ///< in its place: mesh->copies(), where those along cp share each sample, those along ep experts (moe::Layer on mesh->ep()); must outlive the engine
  zero::Init* init = nullptr;                      ///< the scope in which the model was built, see zero/init.h
  int loader_workers = 0;                          ///< threads that make batches of training_data
  std::function<void(const std::string&)> log = {};  ///< what rank 0 has to say; empty: lines on stderr
  std::shared_ptr<Part> part = {};                 ///< of a model that is in parts: pipeline_engine.h gives it
};

struct SaveArgs {
  std::string tag = {};                            ///< empty: global_step<N>
  data::Json client_state = data::Json::Object();  ///< anything; load_checkpoint() gives it back
  bool save_latest = true;                         ///< it is what load_checkpoint() takes by default
  bool exclude_frozen_parameters = false;
  bool async = false;                              ///< write while training goes on
};
struct LoadArgs {
  std::string tag = {};                            ///< empty: the latest
  bool load_module_strict = true;                  ///< the checkpoint must have all of the model, and nothing else
  bool load_optimizer_states = true, load_lr_scheduler_states = true;
  bool load_module_only = false;                   ///< neither these, nor counters, random numbers and the place in the data
};
struct Loaded {
  std::string path;
  data::Json client_state;
};

/// All but the model's own type.
class EngineBase {
 public:
  EngineBase(EngineBase&&) noexcept;
  ~EngineBase();  ///< close(), without errors

  /// Gradients of a micro-batch's mean loss (of this rank's part of it). Those of a step are averaged over all micro-batches of all ranks.
  void backward(const Variable& loss);
  /// The same for a loss that is a sum over `tokens` tokens: a step's gradient is that of the mean over all tokens, also where
  /// micro-batches and ranks have different numbers of them.
  void backward(const Variable& loss_sum, int64_t tokens);
  /// The loss times what this engine wants to see in it, for loss.backward() by the caller.
  Variable scale(const Variable& loss);

  /// At a boundary: clip, update, next learning rate. Before it nothing. Call it after every backward (managed_gradient_accumulation
  /// false: at boundaries only). `metric` is for ReduceLROnPlateau: the mean over ranks counts.
  void step(std::optional<double> metric = {});
  /// Whether the step() that comes next updates.
  bool is_gradient_accumulation_boundary() const;
  /// Forgets the gradients since the last boundary.
  void zero_grad();

  /// While it lives backwards sum at this rank only (stages 0 and 1); the accumulation does so by itself.
  class NoSync {
   public:
    explicit NoSync(EngineBase& engine);
    ~NoSync();
    NoSync(const NoSync&) = delete;
   private:
    EngineBase& engine_;
    std::optional<zero::Zero::NoSync> inner_;  // the 1-bit optimizers send nothing before step()
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  void train(bool training = true);
  void eval() { train(false); }

  /// All ranks together, at a boundary. Tensors by their names, so any number of ranks and any stage can load them; with counters,
  /// schedule, loss scale, random numbers and the place in training_data.
  void save_checkpoint(const std::string& dir, const SaveArgs& args = {});
  /// Nothing, with a warning, when there is no checkpoint in `dir`.
  std::optional<Loaded> load_checkpoint(const std::string& dir, const LoadArgs& args = {});
  /// The whole model in its dtype as one safetensors file, by rank 0. False, with a warning, at stage 3 without
  /// stage3_gather_16bit_weights_on_model_save. Collective.
  bool save_16bit_model(const std::string& dir, const std::string& name = "model.safetensors");
  /// Waits until a checkpoint that is being written is there.
  void wait_for_checkpoint();

  // What the config says
  const Config& config() const;
  int64_t train_batch_size() const;
  int64_t train_micro_batch_size_per_gpu() const;
  int64_t gradient_accumulation_steps() const;
  int64_t steps_per_print() const;  ///< 0: never
  double gradient_clipping() const;
  int zero_optimization_stage() const;
  bool fp16_enabled() const;
  bool bfloat16_enabled() const;
  bool wall_clock_breakdown() const;

  // Where training is
  int64_t global_steps() const;     ///< boundaries, also those that were skipped
  int64_t micro_steps() const;
  int64_t skipped_steps() const;    ///< boundaries at which a gradient had overflowed
  int64_t global_samples() const;
  double loss_scale() const;        ///< 1 without fp16
  double train_loss() const;        ///< of the last boundary: the mean over its micro-batches (tokens) at all ranks. NaN when unknown
  double get_global_grad_norm() const;  ///< of the last boundary, before clipping; NaN when it was skipped
  std::vector<double> get_lr() const;   ///< of each parameter group
  void set_lr(double lr);
  /// Which of the step's train_batch_size / train_micro_batch_size_per_gpu micro-batches this rank does next; the same where ranks share sequences.
  int64_t micro_batch() const;

  dist::ProcessGroup& group() const;
  int global_rank() const;
  int local_rank() const;
  int world_size() const;
  Device device() const;
  optim::Optimizer& optimizer() const;
  optim::Schedule* lr_scheduler() const;  ///< null when there is none
  Loader* training_dataloader() const;    ///< null without training_data
  zero::Zero& zero() const;               ///< Error when the optimizer is a 1-bit one
  onebit::Optimizer* onebit() const;      ///< null when it is another. Before evaluation 0/1 Adam's ranks want its synchronize()

  /// The comms_logger's table, with what ranks waited for each other. All ranks together.
  std::string comms_summary(bool show_straggler = true);
  /// Ends it: what is being written is waited for, and nothing else may be called.
  void close();

  struct Impl;

 protected:
  EngineBase(nn::Module& model, InitializeArgs args);
  /// Runs a forward, and says more when it fails over its inputs' dtype.
  class Forward {
   public:
    explicit Forward(EngineBase& engine);
    ~Forward();
    Tensor cast(const Tensor& input);
    Variable cast(const Variable& input);
    template <class T> T&& cast(T&& other) requires(!std::is_convertible_v<T, Variable>) { return std::forward<T>(other); }
    [[noreturn]] void explain(const Error& error) const;
   private:
    EngineBase& engine_;
    bool saw_other_dtype_ = false;
  };

  std::unique_ptr<Impl> impl_;
  friend Variable scale(const Variable& loss, const std::vector<EngineBase*>& engines);
};

/// One loss of several models: the loss times a scale that all of these engines then know. Call backward() on the result, then step()
/// of each. Without loss scaling plain loss.backward() will do.
Variable scale(const Variable& loss, const std::vector<EngineBase*>& engines);

/// Calls the model: engine(x) is model(x), with inputs cast when the config says so.
template <class M>
class Engine : public EngineBase {
 public:
  Engine(M& model, InitializeArgs args) : EngineBase(model, std::move(args)), model_(&model) {}
  M& module() const { return *model_; }

  template <class... Args>
  auto operator()(Args&&... args) {
    Forward forward(*this);
    try {
      if constexpr (requires(M& m) { m(forward.cast(std::forward<Args>(args))...); }) return (*model_)(forward.cast(std::forward<Args>(args))...);
      else return model_->call(forward.cast(std::forward<Args>(args))...);
    } catch (const Error& error) {
      forward.explain(error);
    }
  }

 private:
  M* model_;
};

template <class M>
struct Initialized {
  Engine<M> engine;
  optim::Optimizer& optimizer;
  Loader* training_dataloader;
  optim::Schedule* lr_scheduler;
};

/// Collective. The model's parameters become what the config says (dtype, shards), and rank 0's everywhere. What is given must outlive
/// the engine. No config, and two of them, are Errors.
template <class M>
Initialized<M> initialize(M& model, InitializeArgs args) {
  Engine<M> engine(model, std::move(args));
  optim::Optimizer& optimizer = engine.optimizer();
  Loader* const loader = engine.training_dataloader();
  optim::Schedule* const schedule = engine.lr_scheduler();
  return {std::move(engine), optimizer, loader, schedule};
}
template <class M>
Engine<M> initialize(M& model, ConfigSource config) { return Engine<M>(model, {.config = std::move(config)}); }
template <class M>
Engine<M> initialize(M& model, optim::Optimizer& optimizer, ConfigSource config) { return Engine<M>(model, {.optimizer = &optimizer, .config = std::move(config)}); }

}  // namespace lockstep::engine
