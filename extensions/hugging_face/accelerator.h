#pragma once
// An interface like Hugging Face's accelerate, for a training loop of your own on any number of ranks.
//
//   train::Accelerator acc({.gradient_accumulation_steps = 4});
//   auto [model, optimizer, loader, schedule] = acc.prepare(net, adam, batches, cosine);  // any of them, in any order
//   for (auto& [x, y] : loader) {
//     auto hold = acc.accumulate(model);
//     acc.backward(cross_entropy(model(x), y));
//     optimizer.step();
//     schedule.step();
//     optimizer.zero_grad();
//   }
//
// One engine (engine/engine.h) does all the work. For a given global batch, the parameters' bits and the learning rates
// are the same on 1, 2, 4, 8, ... ranks. A schedule advances once per optimizer step.
#include <concepts>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/at_end.h"
#include "data/loader.h"
#include "data/to_device.h"
#include "engine/engine.h"
#include "train/job.h"

namespace lockstep::train {

/// Options of an Accelerator, by accelerate's names.
struct AcceleratorOptions {
  /// "no": f32; "bf16"/"fp8": bf16 weights; "fp16": autocast (f16 weights if deepspeed_config has fp16.enabled "auto").
  std::string mixed_precision = "no";
  int64_t gradient_accumulation_steps = 1;    ///< above 1, deepspeed_config must have the same value or "auto"
  bool split_batches = false;                 ///< true: a loader's batch_size is the total of all ranks
  bool even_batches = true;                   ///< must be true: ranks with fewer batches would block the others
  bool step_scheduler_with_optimizer = true;  ///< true: schedules advance only with updates; false: every step() counts
  std::string deepspeed_config = {};          ///< file or JSON text; "auto" values are filled in
  double warmup_steps = 0;                    ///< below 1: a fraction of total_steps
  int64_t total_steps = 0;                    ///< total_steps and warmup_steps replace "auto" in the file's scheduler
  std::string device = "cpu";                 ///< "cuda": the ranks of a machine take its devices in turn
};

namespace accelerated {

/// Divides a loader's samples among ranks: by the engine's micro-batches in training, by whole batches in evaluation.
struct Dealing {
  struct Rule {  ///< how a step's micro-batches are divided among ranks
    int64_t accumulation = 1;
    bool interleaved = true;
  };
  data::Sampler order;  ///< order of all samples
  int64_t micro = 1, world = 1, rank = 0;
  bool drop_last = false;
  std::function<Rule()> rule;  ///< called at the start of each loop
  int64_t samples = 0;         ///< of all ranks in the loop
  Rule used = {};              ///< the rule of the loop

  std::vector<int64_t> deal(int64_t epoch);  ///< starts a loop; returns the indices of this rank's samples
  /// Returns how many samples each rank has in batch number `batch` of the loop, not counting padding.
  std::vector<int64_t> real(int64_t batch) const;
};

/// The batch that a loop is working on.
struct Loop {
  int64_t rows = 0;           ///< samples in the batch, on each rank
  std::vector<int64_t> real;  ///< samples of each rank that are not padding
};

/// Shared by an Accelerator and everything that it prepared.
struct AcceleratorState {
  /// job: that of the program; nullptr: joins or makes one.
  explicit AcceleratorState(AcceleratorOptions options, TrainJob* job = nullptr);
  TrainJob& job() { return *job_; }                    ///< the job that this process belongs to
  int world() { return job_->mesh().world().size(); }  ///< number of ranks
  bool leads() { return job_->team().leads(); }        ///< true on rank 0
  engine::EngineBase& trained(const char* call);       ///< the engine; if there is none, an Error that names `call`
  /// Number of optimizer steps so far, without those that were skipped.
  int64_t updates() { return engine ? engine->global_steps() - engine->skipped_steps() : 0; }

  void note_loader(int64_t batch_size);    ///< the first loader sets the micro-batch size
  void note_schedule();                    ///< Error if the file has a schedule, too
  void join(optim::Optimizer& optimizer);  ///< builds the engine for the optimizer's model
  /// Makes the Dealing that divides a loader's samples among ranks. Collective. Error if the ranks' orders differ.
  std::shared_ptr<Dealing> deal(const data::Sampler& order, int64_t batch_size, bool drop_last);
  void step();                                           ///< does an optimizer.step() of the user's loop
  void zero_grad();                                      ///< drops gradients that no step() consumed
  void save(const std::string& folder);                  ///< saves a checkpoint; collective
  void load(const std::string& folder);                  ///< loads a checkpoint; collective
  void make_current(const std::shared_ptr<Loop>& loop);  ///< notes that `loop` received the most recent batch
  Loop running_loop() const;                             ///< the loop of the most recent batch; Error if there was none

  struct Model {  ///< a prepared model
    nn::Module* module;
    std::shared_ptr<void> holder;                                     ///< owns the engine
    std::function<engine::EngineBase*(engine::InitializeArgs)> make;  ///< makes the engine
  };
  /// State to be saved in addition to the engine's.
  struct Kept {
    std::function<data::Json()> state;               ///< returns the object's state, to save it
    std::function<void(const data::Json&)> load;     ///< restores the object's state
    const void* of = nullptr;                        ///< the object: preparing it again replaces its entry
    std::optional<std::weak_ptr<void>> loader = {};  ///< set in a loader's entry, which is dropped with the loader
  };
  void keep(Kept one);  ///< adds or replaces an entry
  /// Saves a loader's state: access(nullptr) returns it, access(s) sets it. shuffled: null if it does not shuffle.
  void keep_loader(std::function<data::LoaderState(const data::LoaderState* to_load)> access,
                   std::shared_ptr<void> loader, Dealing* shuffled);
  const AcceleratorOptions options;

 private:
  std::unique_ptr<Team> own_team_;
  std::unique_ptr<TrainJob> own_job_;
  TrainJob* job_;

 public:
  optim::GradScaler scaler;
  std::vector<Model> models;  ///< declared here to be destroyed before the job
  engine::EngineBase* engine = nullptr;
  std::vector<Kept> kept;
  data::Json::Array unclaimed;             ///< loaded states, for loaders that are prepared later
  int64_t micro_batch = 0;                 ///< samples per rank, from the first loader
  double clipping = 0;                     ///< gradient clipping norm of the configuration
  std::vector<std::weak_ptr<Loop>> loops;  ///< running loops; the last one received the last batch
  std::optional<Loop> last_loop;           ///< the Loop of the last batch, kept as that loop may have ended
  bool pending = false, holding = false;   ///< pending: gradients wait for a step; holding: inside accumulate()
};
using Shared = std::shared_ptr<AcceleratorState>;  ///< lives until the last prepared object is gone

template <class M> struct Holder {  ///< a model and its engine, once its optimizer is prepared
  M* model;
  std::unique_ptr<engine::Engine<M>> engine;
};

template <class T> inline constexpr bool is_loader = false;  ///< true if T is a DataLoader
template <class S, class B> inline constexpr bool is_loader<data::DataLoader<S, B>> = true;
[[noreturn]] void refuse_thing(bool prepared);  ///< throws the Error for an argument that prepare() rejects

}  // namespace accelerated

/// A prepared model: call it like the model itself. It can be trained once its optimizer is prepared.
template <class M> class PreparedModel {
 public:
  PreparedModel(accelerated::Shared state, std::shared_ptr<accelerated::Holder<M>> holder)
      : state_(std::move(state)), holder_(std::move(holder)) {}
  template <class... Args> auto operator()(Args&&... args) {
    LOCKSTEP_CHECK(holder_->model, "[Accelerator] expected a model, got one after free_memory(); prepare it again");
    using Out = decltype(std::declval<engine::Engine<M>&>()(std::forward<Args>(args)...));
    if (holder_->engine) return Out((*holder_->engine)(std::forward<Args>(args)...));
    if constexpr (requires(M & m) { m(std::forward<Args>(args)...); })
      return Out((*holder_->model)(std::forward<Args>(args)...));
    else return Out(holder_->model->call(std::forward<Args>(args)...));
  }
  /// Sets training mode, in which dropout is active, if `training` is true, else evaluation mode.
  void train(bool training = true) { unwrap().train(training); }
  void eval() { train(false); }                  ///< evaluation mode
  M& unwrap() const { return *holder_->model; }  ///< the user's model

 private:
  accelerated::Shared state_;
  std::shared_ptr<accelerated::Holder<M>> holder_;
};

/// A prepared optimizer: call step() and zero_grad() in every iteration of the loop, also while accumulating.
class PreparedOptimizer {
 public:
  PreparedOptimizer(accelerated::Shared state, optim::Optimizer& optimizer)
      : state_(std::move(state)), optimizer_(&optimizer) {}
  /// Counts a batch. After the last batch to accumulate, also reduces gradients over ranks, clips them and updates.
  void step() { state_->step(); }
  /// Drops gradients that no step() consumed. step() clears gradients by itself.
  void zero_grad() { state_->zero_grad(); }
  double lr(int group = 0) const { return optimizer_->lr(group); }  ///< learning rate
  optim::Optimizer& unwrap() const { return *optimizer_; }          ///< the user's optimizer

 private:
  accelerated::Shared state_;
  optim::Optimizer* optimizer_;
};

/// A prepared schedule: call step() in every iteration. It advances once per optimizer update, but not while
/// accumulating or after a skipped step. step(metric) is collective and uses the mean of the metric over ranks.
class PreparedSchedule {
 public:
  PreparedSchedule(accelerated::Shared state, optim::Schedule& schedule);
  void step() {  ///< advances if an update happened
    if (is_due()) schedule_->step();
  }
  void step(double metric);                                        ///< step() with the mean of `metric` over ranks
  double lr(int group = 0) const { return schedule_->lr(group); }  ///< learning rate
  int64_t last_step() const { return schedule_->last_step(); }     ///< steps taken

 private:
  bool is_due();
  accelerated::Shared state_;
  optim::Schedule* schedule_;
  std::shared_ptr<int64_t> taken_;
};

/// The batches of this rank, on its device. Every loop is one epoch.
template <class S, class B> class PreparedLoader {
 public:
  class Iterator {  ///< iterates over the batches of an epoch
   public:
    B& operator*() const { return *inner_; }
    B* operator->() const { return &*inner_; }
    Iterator& operator++() { return ++inner_, take(), *this; }                    ///< fetches the next batch
    bool operator==(std::default_sentinel_t end) const { return inner_ == end; }  ///< true at the end of the epoch

   private:
    friend PreparedLoader;
    explicit Iterator(PreparedLoader& loader)
        : loader_(&loader), inner_(loader.loader_->begin()), dealing_(*loader.dealing_) {
      at_ = loader_->loader_->state().samples / (dealing_.micro * dealing_.world) - 1;  // begin() has taken one batch
      take();
    }
    void take() {
      if (inner_ == std::default_sentinel) return loop_.reset();
      *loop_ = {dealing_.micro, dealing_.real(at_++)};
      loader_->state_->make_current(loop_);
      if constexpr (requires { (*loader_->to_device_)(*inner_); }) *inner_ = (*loader_->to_device_)(*inner_);
    }
    PreparedLoader* loader_;
    typename data::DataLoader<S, B>::Iterator inner_;
    accelerated::Dealing dealing_;  // a copy: a nested loop over this loader may divide samples differently
    std::shared_ptr<accelerated::Loop> loop_ = std::make_shared<accelerated::Loop>();
    int64_t at_ = 0;
  };

  PreparedLoader(accelerated::Shared state, data::DataLoader<S, B>& plain,
                 std::shared_ptr<accelerated::Dealing> dealing)
      : state_(std::move(state)),
        dealing_(std::move(dealing)),
        loader_(std::make_shared<data::DataLoader<S, B>>(
            plain.dealt([d = dealing_](int64_t epoch) { return d->deal(epoch); }, dealing_->micro, dealing_->world))),
        to_device_(std::make_shared<data::ToDevice>(state_->job().device())) {
    const auto access = [loader = loader_.get()](const data::LoaderState* to_load) {
      if (to_load) loader->load_state(*to_load);
      return loader->state();
    };
    state_->keep_loader(access, loader_, plain.options().shuffle ? dealing_.get() : nullptr);
  }
  /// Starts an epoch, or resumes after load_state(). In evaluation mode collective: broadcasts rank 0's buffers first.
  Iterator begin() {
    if (state_->engine && !state_->engine->module().is_training()) state_->engine->sync_buffers();
    return Iterator(*this);
  }
  std::default_sentinel_t end() const { return {}; }            ///< end of the epoch
  int64_t size() const { return loader_->size(); }              ///< number of this rank's batches in an epoch
  void set_epoch(int64_t epoch) { loader_->set_epoch(epoch); }  ///< the epoch of the next loop

 private:
  accelerated::Shared state_;
  std::shared_ptr<accelerated::Dealing> dealing_;
  std::shared_ptr<data::DataLoader<S, B>> loader_;
  std::shared_ptr<data::ToDevice> to_device_;
};

/// An argument of prepare() made by skip(): prepare() returns the thing as it is.
template <class T> struct Skipped { T* thing; };

/// Prepares models, optimizers, loaders and schedules for training on all ranks. See the top of this file.
class Accelerator {
 public:
  /// Joins the job that the environment describes, unless the process has joined it already. Without one, trains alone.
  explicit Accelerator(AcceleratorOptions options = {})
      : state_(std::make_shared<accelerated::AcceleratorState>(std::move(options))) {}
  /// Uses a program's job. The program's command line then sets precision, accumulation and configuration.
  explicit Accelerator(TrainJob& job, AcceleratorOptions options = {})
      : state_(std::make_shared<accelerated::AcceleratorState>(std::move(options), &job)) {}

  /// Collective. Takes a model, its optimizer, loaders and schedules. Returns the prepared objects in the same order
  /// (several as a tuple). The arguments must exist while the prepared objects are used; the Accelerator itself may be
  /// destroyed earlier. The first loader is the training data: its batch_size is per rank. In eval mode, rank r of N
  /// gets every N-th batch, from batch r on. Error for a sharded loader, and for an argument of another kind.
  template <class... T> decltype(auto) prepare(T&&... things) {
    (note(things), ...);
    (join(things), ...);
    if constexpr (sizeof...(T) == 1) return made(things...);
    else return std::tuple<decltype(made(things))...>{made(things)...};
  }
  template <class T> static Skipped<T> skip(T& thing) { return {&thing}; }  ///< prepare(skip(thing)) returns `thing`

  /// If a step accumulates several batches, keep the result until the iteration ends: backward() throws without it.
  template <class M> [[nodiscard]] auto accumulate(const PreparedModel<M>&) {
    state_->holding = true;
    return AtEnd([state = state_] { state->holding = false; });
  }
  /// Backpropagates a mean loss, times the loss scale (fp16). Without loss scaling, loss.backward() does the same.
  void backward(const Variable& loss);
  /// True if the next optimizer.step() updates the parameters.
  bool sync_gradients() const { return state_->trained("sync_gradients").is_gradient_accumulation_boundary(); }
  /// Limits the global gradient norm in the next step. Returns the norm of the last step, because the norm of the next
  /// step is known only in step(), once all ranks have reduced their gradients.
  template <class M> double clip_grad_norm_(const PreparedModel<M>&, double max_norm) { return clip(max_norm); }

  /// Collective: concatenates all ranks' tensors along dim 0, on every rank.
  Tensor gather(const Tensor& tensor) const;
  /// gather() without the padding samples in the last batch of the innermost running loop.
  Tensor gather_for_metrics(const Tensor& tensor) const;
  /// Collective: returns the "sum" or "mean" over ranks, on every rank.
  Tensor reduce(const Tensor& tensor, const std::string& reduction = "sum") const;
  /// Collective: pads the tensor with `pad_index` along `dim` to the largest size on any rank.
  Tensor pad_across_processes(const Tensor& tensor, int64_t dim = 0, Scalar pad_index = 0,
                              bool pad_first = false) const;

  bool is_main_process() const { return state_->leads(); }  ///< true on rank 0
  /// True on the first rank of each host.
  bool is_local_main_process() const { return state_->job().team().local_rank() == 0; }
  int num_processes() const { return state_->world(); }              ///< number of ranks
  int process_index() const { return state_->job().team().rank(); }  ///< number of this rank
  Device device() const { return state_->job().device(); }           ///< device of this rank
  void wait_for_everyone() const { state_->job().team().wait(); }    ///< barrier
  template <class... T> void print(const T&... what) const {         ///< prints on the main process only
    if (is_main_process()) ((std::cout << what), ...) << std::endl;
  }
  /// The user's model.
  template <class M> M& unwrap_model(const PreparedModel<M>& model) const { return model.unwrap(); }

  /// Collective, between steps: saves model, optimizer, loss scale, random numbers, schedules, positions of the loaders
  /// that exist, and registered objects.
  void save_state(const std::string& folder) { state_->save(folder); }
  /// Collective: loads what save_state() saved, on any number of ranks. Loaders may also be prepared after loading.
  void load_state(const std::string& folder) { state_->load(folder); }
  /// Saves `object` in checkpoints, through its Json state() and load_state(Json). Rank 0's state is stored.
  template <class T> void register_for_checkpointing(T& object) {
    state_->keep({[&object] { return data::Json(object.state()); },
                  [&object](const data::Json& json) { object.load_state(json); }, &object});
  }
  void free_memory();  ///< ends training: nothing that was prepared may be used afterwards
  /// The engine that trains the model. Error before prepare() has received a model and its optimizer.
  engine::EngineBase& engine() const { return state_->trained("engine"); }

 private:
  double clip(double max_norm);

  template <class T> void note(T& thing) {
    if constexpr (std::derived_from<T, nn::Module>) {
      auto holder = std::make_shared<accelerated::Holder<T>>(accelerated::Holder<T>{&thing, nullptr});
      for (const auto& model : state_->models)
        LOCKSTEP_CHECK(model.module != &thing, "[prepare] this model is prepared already; pass it once");
      thing.to(state_->job().device());
      state_->models.push_back({&thing, holder, [h = holder.get()](engine::InitializeArgs args) -> engine::EngineBase* {
                                  h->engine = std::make_unique<engine::Engine<T>>(*h->model, std::move(args));
                                  return h->engine.get();
                                }});
    } else if constexpr (accelerated::is_loader<T>) {
      const auto& o = thing.options();
      const bool micro = o.sampler.template target<data::MicroBatchSampler>();
      LOCKSTEP_CHECK(o.world == 1 && !micro && !o.sampler.template target<data::DistributedSampler>(),
                     "[prepare] the loader is sharded already (", micro ? "MicroBatchSampler" : "DistributedSampler",
                     "); pass one that is not: prepare() shards it");
      state_->note_loader(o.batch_size);
    } else if constexpr (std::derived_from<T, optim::Schedule>) {
      state_->note_schedule();
    } else if constexpr (!std::derived_from<T, optim::Optimizer> && !requires { thing.thing; }) {
      accelerated::refuse_thing(
          requires { thing.unwrap(); } || requires { thing.set_epoch(0); });
    }
  }
  template <class T> void join(T& thing) {
    if constexpr (std::derived_from<T, optim::Optimizer>) state_->join(thing);
  }
  template <class T> decltype(auto) made(T& thing) {
    if constexpr (std::derived_from<T, nn::Module>) {
      for (const auto& model : state_->models)
        if (model.module == &thing)
          return PreparedModel<T>(state_, std::static_pointer_cast<accelerated::Holder<T>>(model.holder));
      fail("[prepare] expected a model of the arguments; this is a bug in Lockstep, please report it");
    } else if constexpr (std::derived_from<T, optim::Optimizer>) {
      return PreparedOptimizer(state_, thing);
    } else if constexpr (std::derived_from<T, optim::Schedule>) {
      return PreparedSchedule(state_, thing);
    } else if constexpr (accelerated::is_loader<T>) {
      const auto& o = thing.options();
      const int64_t n = thing.dataset()->size();
      const data::Sampler order = o.sampler   ? o.sampler
                                  : o.shuffle ? data::Sampler(data::RandomSampler(n, thing.seed()))
                                              : data::Sampler(data::SequentialSampler(n));
      return PreparedLoader(state_, thing, state_->deal(order, o.batch_size, o.drop_last));
    } else if constexpr (requires { *thing.thing; }) {
      return (*thing.thing);
    } else {
      return (thing);
    }
  }

  accelerated::Shared state_;
};

}  // namespace lockstep::train
