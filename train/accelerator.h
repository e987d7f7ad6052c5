#pragma once
// Hugging Face's accelerate as a front of prepare(): a loop of one's own, for any number of ranks.
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
// One engine (engine/engine.h) does all of it. The same global batch gives the same bits and learning rates for any
// power of two of ranks: a schedule steps once for each step of the optimizer.
#include <concepts>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "data/loader.h"
#include "data/to_device.h"
#include "engine/engine.h"
#include "tensor/at_end.h"
#include "train/job.h"

namespace lockstep::train {

struct AcceleratorOptions {
  std::string mixed_precision = "no";  ///< "fp16", "bf16", "fp8": forwards under Autocast; parameters too, where the
                                       ///< file has "auto" for it
  int64_t gradient_accumulation_steps = 1;    ///< above 1 the file must say the same, or "auto"
  bool split_batches = false;                 ///< a loader's batch_size is that of all ranks together
  bool even_batches = true;                   ///< false is refused: ranks would wait for each other's batches
  bool step_scheduler_with_optimizer = true;  ///< false: every call of a schedule's step() counts
  std::string deepspeed_config = {};          ///< file, or JSON; "auto" is filled in
  double warmup_steps = 0;                    ///< below 1: a part of total_steps
  int64_t total_steps = 0;                    ///< both for a scheduler of that file that has "auto"
  std::string device = "cpu";                 ///< cuda: ranks of a machine take its devices in turn
};

namespace accelerated {

/// How the batches of a loader are dealt to ranks: the engine's micro-batches in training, one a rank in evaluation.
struct Dealing {
  struct Rule {
    int64_t accumulation = 1;
    bool interleaved = true;
  };
  data::Sampler order;  ///< of all samples
  int64_t micro = 1, world = 1, rank = 0;
  bool drop_last = false;
  std::function<Rule()> rule;  ///< asked where a loop begins

  std::vector<int64_t> deal(int64_t epoch);
  /// How many samples of a loop's batch are no repetitions that fill up the end, at each rank.
  std::vector<int64_t> real(int64_t batch) const;

 private:
  int64_t samples_ = 0;
  Rule used_;
};

struct Loop {
  int64_t rows = 0;           ///< samples of the batch that it was given last,
  std::vector<int64_t> real;  ///< and at each rank those that are no repetitions
};

/// What an Accelerator and all that it prepared share.
struct State {
  State(Job& job, AcceleratorOptions options);
  explicit State(AcceleratorOptions options);
  Job& job() { return *job_; }
  int world() { return job_->mesh().world().size(); }
  bool leads() { return job_->team().leads(); }
  engine::EngineBase& trained(const char* call);
  int64_t updates() { return engine ? engine->global_steps() - engine->skipped_steps() : 0; }

  void note_loader(int64_t batch_size);
  void note_schedule();
  void join(optim::Optimizer& optimizer);
  std::shared_ptr<Dealing> deal(const data::Sampler& order, int64_t batch_size, bool drop_last);
  void step();
  void zero_grad();
  void save(const std::string& folder);
  void load(const std::string& folder);
  void turn_to(const std::shared_ptr<Loop>& loop);
  Loop running_loop() const;

  struct Model {
    nn::Module* module;
    std::shared_ptr<void> holder;  ///< of its engine
    std::function<engine::EngineBase*(engine::InitializeArgs)> make;
  };
  /// What a checkpoint has besides the engine's own.
  struct Kept {
    std::function<data::Json()> state;
    std::function<void(const data::Json&)> load;
    const void* of = nullptr;                        ///< prepared for the second time, it takes the first one's place
    std::optional<std::weak_ptr<void>> loader = {};  ///< that it is of, kept as long as that lives
  };
  void keep(Kept one);
  void keep_loader(std::function<data::LoaderState(const data::LoaderState* to_load)> access,
                   std::shared_ptr<void> loader, Dealing* shuffled);
  const AcceleratorOptions options;

 private:
  void check();
  std::unique_ptr<Team> own_team_;
  std::unique_ptr<Job> own_job_;
  Job* job_;

 public:
  optim::GradScaler scaler;
  std::vector<Model> models;  ///< destroyed before the job
  engine::EngineBase* engine = nullptr;
  std::vector<Kept> kept;
  data::Json::Array unclaimed;             ///< states of loaders that are prepared after load_state()
  int64_t micro_batch = 0;                 ///< of the first loader
  double clipping = 0;                     ///< of the configuration
  std::vector<std::weak_ptr<Loop>> loops;  ///< that run, the one that was given a batch last behind the others
  std::optional<Loop> last_loop;           ///< what that one was, as it may have ended or been left
  bool pending = false, holding = false;
};
using Shared = std::shared_ptr<State>;

template <class M> struct Holder {
  M* model;
  std::unique_ptr<engine::Engine<M>> engine;
};

template <class T> struct LoaderOf : std::false_type {};
template <class S, class B> struct LoaderOf<data::DataLoader<S, B>> : std::true_type {
  using Sample = S;
  using Batch = B;
};
[[noreturn]] void refuse_thing(bool prepared);

}  // namespace accelerated

/// A model: call it. Trained once its optimizer is prepared.
template <class M> class PreparedModel {
 public:
  PreparedModel(accelerated::Shared state, std::shared_ptr<accelerated::Holder<M>> holder)
      : state_(std::move(state)), holder_(std::move(holder)) {}
  template <class... Args> auto operator()(Args&&... args) {
    LOCKSTEP_CHECK(holder_->model, "[Accelerator] expected a model, got one after free_memory()");
    using Out = decltype(std::declval<engine::Engine<M>&>()(std::forward<Args>(args)...));
    if (holder_->engine) return Out((*holder_->engine)(std::forward<Args>(args)...));
    if constexpr (requires(M & m) { m(std::forward<Args>(args)...); })
      return Out((*holder_->model)(std::forward<Args>(args)...));
    else return Out(holder_->model->call(std::forward<Args>(args)...));
  }
  void train(bool training = true) { unwrap().train(training); }
  void eval() { train(false); }
  M& unwrap() const { return *holder_->model; }

 private:
  accelerated::Shared state_;
  std::shared_ptr<accelerated::Holder<M>> holder_;
};

class PreparedOptimizer {
 public:
  PreparedOptimizer(accelerated::Shared state, optim::Optimizer& optimizer)
      : state_(std::move(state)), optimizer_(&optimizer) {}
  /// Clips and updates, with the gradients of all ranks, where a batch ends that is accumulated; else counts.
  void step() { state_->step(); }
  /// A step clears gradients by itself; this forgets those that no step() took.
  void zero_grad() { state_->zero_grad(); }
  double lr(int group = 0) const { return optimizer_->lr(group); }
  optim::Optimizer& unwrap() const { return *optimizer_; }

 private:
  accelerated::Shared state_;
  optim::Optimizer* optimizer_;
};

/// step() counts once for each step of the optimizer; accumulating and skipped steps are none. With a metric all ranks
/// call it, and the mean over them counts.
class PreparedSchedule {
 public:
  PreparedSchedule(accelerated::Shared state, optim::Schedule& schedule);
  void step() {
    if (is_due()) schedule_->step();
  }
  void step(double metric);
  double lr(int group = 0) const { return schedule_->lr(group); }
  int64_t last_step() const { return schedule_->last_step(); }

 private:
  bool is_due();
  accelerated::Shared state_;
  optim::Schedule* schedule_;
  std::shared_ptr<int64_t> taken_;
};

/// This rank's batches, on its device. Every loop is an epoch.
template <class S, class B> class PreparedLoader {
 public:
  class Iterator {
   public:
    B& operator*() const { return *inner_; }
    B* operator->() const { return &*inner_; }
    Iterator& operator++() { return ++inner_, take(), *this; }
    bool operator==(std::default_sentinel_t end) const { return inner_ == end; }

   private:
    friend PreparedLoader;
    explicit Iterator(PreparedLoader& loader)
        : loader_(&loader), inner_(loader.loader_->begin()), dealing_(*loader.dealing_) {
      at_ = loader_->loader_->state().samples / (dealing_.micro * dealing_.world) - 1;  // begin() has taken one
      take();
    }
    void take() {
      if (inner_ == std::default_sentinel) return loop_.reset();
      *loop_ = {dealing_.micro, dealing_.real(at_++)};
      loader_->state_->turn_to(loop_);
      if constexpr (std::same_as<B, data::Example>) *inner_ = (*loader_->to_device_)(*inner_);
    }
    PreparedLoader* loader_;
    typename data::DataLoader<S, B>::Iterator inner_;
    accelerated::Dealing dealing_;  // of this loop: another over the same loader may be dealt otherwise
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
  /// Starts an epoch, or goes on after load_state(). In eval() collective: all ranks get rank 0's buffers first.
  Iterator begin() {
    if (state_->engine && !state_->engine->module().is_training()) state_->engine->sync_buffers();
    return Iterator(*this);
  }
  std::default_sentinel_t end() const { return {}; }
  int64_t size() const { return loader_->size(); }  ///< batches of this rank in an epoch
  void set_epoch(int64_t epoch) { loader_->set_epoch(epoch); }

 private:
  accelerated::Shared state_;
  std::shared_ptr<accelerated::Dealing> dealing_;
  std::shared_ptr<data::DataLoader<S, B>> loader_;
  std::shared_ptr<data::ToDevice> to_device_;
};

/// Passed to prepare(), it comes back as it is.
template <class T> struct Skipped { T* thing; };

class Accelerator {
 public:
  /// Joins the job that the environment names, unless that was done; else trains alone.
  explicit Accelerator(AcceleratorOptions options = {});
  /// Under a program's command line, which then says precision, accumulation and configuration.
  explicit Accelerator(Job& job, AcceleratorOptions options = {});

  /// Collective. Any of a model, its optimizer, loaders and schedules, in any order; the same order comes out (of one,
  /// itself). What is given must be there while it is used, and may be destroyed before or after. The first loader is
  /// the one that is trained on: its batch_size is a rank's. Loops while the model is in eval() are dealt in the order
  /// of the samples. Error for a loader that is sharded already, and for a thing that is none of these.
  template <class... T> decltype(auto) prepare(T&&... things) {
    (note(things), ...);
    (join(things), ...);
    if constexpr (sizeof...(T) == 1) return made(things...);
    else return std::tuple<decltype(made(things))...>{made(things)...};
  }
  template <class T> static Skipped<T> skip(T& thing) { return {&thing}; }

  /// While what it gives lives, the batch of this loop is one of gradient_accumulation_steps that make a step.
  template <class M> [[nodiscard]] auto accumulate(const PreparedModel<M>&) {
    state_->holding = true;
    return AtEnd([state = state_] { state->holding = false; });
  }
  /// Of a mean loss. loss.backward() does the same where nothing scales the loss.
  void backward(const Variable& loss);
  /// Whether the step() that comes next updates.
  bool sync_gradients() const;
  /// The norm of all gradients is at most this in the step that comes. Gives back the norm of the last step: this one's
  /// is known in step(), when all ranks' gradients are there.
  template <class M> double clip_grad_norm_(const PreparedModel<M>&, double max_norm) { return clip(max_norm); }

  /// All ranks' tensors, one behind another along dim 0; the same on all ranks.
  Tensor gather(const Tensor& tensor) const;
  /// The same, without the samples that were repeated to fill up the last batch of the (innermost) loop that runs.
  Tensor gather_for_metrics(const Tensor& tensor) const;
  /// The "sum" or "mean" over ranks; the same on all.
  Tensor reduce(const Tensor& tensor, const std::string& reduction = "sum") const;
  /// As large along `dim` as the largest of the ranks' tensors, filled up with `pad_index`.
  Tensor pad_across_processes(const Tensor& tensor, int64_t dim = 0, Scalar pad_index = 0,
                              bool pad_first = false) const;

  bool is_main_process() const { return state_->leads(); }
  bool is_local_main_process() const { return state_->job().team().local_rank() == 0; }
  int num_processes() const { return state_->world(); }
  int process_index() const { return state_->job().team().rank(); }
  Device device() const { return state_->job().device(); }
  void wait_for_everyone() const { state_->job().team().wait(); }
  /// On the main process only.
  template <class... T> void print(const T&... what) const {
    if (is_main_process()) ((std::cout << what), ...) << std::endl;
  }
  template <class M> M& unwrap_model(const PreparedModel<M>& model) const { return model.unwrap(); }

  /// Collective, at the end of a step: model, optimizer, loss scale, random numbers, schedules, the places of loaders
  /// that live, and what was registered. Any number of ranks loads it; loaders may be prepared later.
  void save_state(const std::string& folder) { state_->save(folder); }
  void load_state(const std::string& folder) { state_->load(folder); }
  /// `object` has Json state() and load_state(Json); the main process's is saved.
  template <class T> void register_for_checkpointing(T& object) {
    state_->keep({[&object] { return data::Json(object.state()); },
                  [&object](const data::Json& json) { object.load_state(json); }, &object});
  }
  /// Ends training: nothing that was prepared may be used any more.
  void free_memory();
  /// Of what is trained.
  engine::EngineBase& engine() const { return state_->trained("engine"); }

 private:
  double clip(double max_norm);

  template <class T> void note(T& thing) {
    if constexpr (std::derived_from<T, nn::Module>) {
      auto holder = std::make_shared<accelerated::Holder<T>>(accelerated::Holder<T>{&thing, nullptr});
      for (const auto& model : state_->models)
        LOCKSTEP_CHECK(model.module != &thing, "[prepare] this model is prepared already");
      thing.to(state_->job().device());
      state_->models.push_back({&thing, holder, [h = holder.get()](engine::InitializeArgs args) -> engine::EngineBase* {
                                  h->engine = std::make_unique<engine::Engine<T>>(*h->model, std::move(args));
                                  return h->engine.get();
                                }});
    } else if constexpr (accelerated::LoaderOf<T>::value) {
      const auto& o = thing.options();
      const bool micro = o.sampler.template target<data::MicroBatchSampler>();
      LOCKSTEP_CHECK(o.world == 1 && !micro && !o.sampler.template target<data::DistributedSampler>(),
                     "[prepare] the loader is sharded already (", micro ? "MicroBatchSampler" : "DistributedSampler",
                     "); pass a plain one");
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
      fail("[prepare] expected a model that was noted");
    } else if constexpr (std::derived_from<T, optim::Optimizer>) {
      return PreparedOptimizer(state_, thing);
    } else if constexpr (std::derived_from<T, optim::Schedule>) {
      return PreparedSchedule(state_, thing);
    } else if constexpr (accelerated::LoaderOf<T>::value) {
      const auto& o = thing.options();
      const int64_t n = thing.dataset()->size();
      const data::Sampler order = o.sampler   ? o.sampler
                                  : o.shuffle ? data::Sampler(data::RandomSampler(n, thing.seed()))
                                              : data::Sampler(data::SequentialSampler(n));
      using Loader = accelerated::LoaderOf<T>;
      return PreparedLoader<typename Loader::Sample, typename Loader::Batch>(
          state_, thing, state_->deal(order, o.batch_size, o.drop_last));
    } else if constexpr (requires { *thing.thing; }) {
      return (*thing.thing);
    } else {
      return (thing);
    }
  }

  accelerated::Shared state_;
};

}  // namespace lockstep::train
