#pragma once
// Trains a model: steps under any plan and configuration, evaluation, checkpoints and resume, Ctrl-C, metrics, traces.
//
//   train::Trainer trainer(job, net, {.loss = loss, .data = digits, .evaluate = test,
//                                     .metrics = {{"accuracy", accuracy}}});
//   trainer.fit();
//
// A step is one call of the engine (engine/engine.h) under every plan. For pipeline and tensor parallelism the model's
// fields() and layers() define the split. A run's folder (--out) has config.json, metrics.jsonl (one line per
// step) and checkpoints/ (checkpoint/checkpoint.h), from which any other plan can resume.
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "engine/engine.h"
#include "nn/init.h"
#include "train/job.h"

namespace lockstep::train {

/// A function of Args and of the targets of a micro-batch. It is made of a function that takes a std::vector<Tensor> of
/// all targets, or a Tensor, the only one: then several targets are an Error. A generic lambda gets a Tensor.
template <class Result, class... Args>
struct OfTargets : std::function<Result(const Args&..., const std::vector<Tensor>&)> {
  /// The function that takes all targets.
  using All = std::function<Result(const Args&..., const std::vector<Tensor>&)>;
  OfTargets(std::nullptr_t = nullptr) {}  // NOLINT: implicit on purpose
  template <class F>
  requires std::is_invocable_r_v<Result, F&, const Args&..., const Tensor&> || std::is_invocable_r_v < Result, F&,
      const Args&..., const std::vector<Tensor>
  & > OfTargets(F fn) {  // NOLINT: implicit on purpose
    if constexpr (std::is_invocable_v<F&, const Args&..., const Tensor&>)
      static_cast<All&>(*this) = [of_one = std::move(fn)](const Args&... args,
                                                          const std::vector<Tensor>& targets) mutable -> Result {
        LOCKSTEP_CHECK(targets.size() == 1, "[Trainer] expected one target, as a function of it takes a Tensor, got ",
                       targets.size(), "; let it take a std::vector<Tensor>");
        return of_one(args..., targets[0]);
      };
    else static_cast<All&>(*this) = std::move(fn);
  }
};
/// A loss or metric of a micro-batch: a function of the model's output and the target or targets.
using Measure = OfTargets<Variable, Variable>;
/// Requests of callbacks. If a callback on any rank makes one, all ranks follow it at the end of the step.
struct Control {
  bool stop = false;                               ///< true: the training ends, as after its last step
  bool evaluate = false;                           ///< true: evaluates. Error without TrainerOptions::evaluate
  bool save = false;                               ///< true: writes a checkpoint, if the run has a folder (--out)
  std::string reason = "a callback asked for it";  ///< why to stop; rank 0 prints its own reason
};
/// State of a run, as callbacks receive it.
struct RunState {
  int64_t step = 0, epoch = 0;             ///< steps done; epoch from 1 (0: the data have no epochs)
  double loss = 0, lr = 0, grad_norm = 0;  ///< of the last step; loss: mean over all its micro-batches
  std::vector<std::pair<std::string, double>> metrics = {};  ///< of the last evaluation: {"val_loss", ...}
  /// The step's line of metrics.jsonl, to which on_step_end, on_epoch_end and on_evaluate may add. In on_train_end: the
  /// results, which are printed last.
  data::Json line = data::Json::Object();
  Control control = {};
  engine::EngineBase* engine = nullptr;  ///< trains the model
};
/// Functions that a Trainer calls on every rank. They may be collective, if all ranks have them.
struct Callback {
  using Function = std::function<void(RunState& run)>;  ///< see RunState for what it may read, ask for and add
  /// Called when everything is checked and loaded, before the run's folder is changed.
  Function on_train_begin = {};
  Function on_epoch_begin = {};  ///< called before the first step of an epoch, or of a resumed run in its midst
  Function on_epoch_end = {};    ///< called after on_step_end, at the last step of an epoch or of the planned run
  Function on_step_end = {};     ///< called before the step's evaluation and checkpoint
  Function on_evaluate = {};     ///< called after an evaluation during training
  Function on_save = {};         ///< called after a checkpoint was written
  Function on_train_end = {};    ///< called after the last checkpoint and evaluation
  std::string name = {};         ///< names the state in checkpoints
  std::function<data::Json()> state = {};                        ///< returns what checkpoints keep, on rank 0
  std::function<void(const data::Json& saved)> load_state = {};  ///< takes it on all ranks, before on_train_begin
};

/// The model's outputs and the targets of samples, in order, on the CPU.
struct Predictions {
  Tensor predictions, label_ids;
  std::vector<Tensor> more_label_ids = {};              ///< the second target, the third, ...
  std::vector<std::pair<std::string, double>> metrics;  ///< {"test_loss", ...}
};

/// Settings of a run, as Hugging Face's trainer_state.json has them.
struct TrainerStateOptions {
  double logging_steps = 500, eval_steps = 500, save_steps = 500;
  int64_t train_batch_size = 0;
  double num_train_epochs = 0;
  int64_t max_steps = 0, steps_of_epoch = 0;
  double samples_of_step = 0;
  /// Returns `given` as a number of steps. A `given` below 1 is a fraction of max_steps.
  int64_t to_steps(double given) const;
};

/// Options of a Trainer.
struct TrainerOptions {
  Measure loss = {};                               ///< mean over the samples; default: the loss in the model's layers()
  data::DatasetPtr<data::Example> data = nullptr;  ///< the training data; the seed determines the order of each epoch
  /// Returns the order of epochs of `data`, of which each step takes `of_step` samples. Default: shuffled.
  std::function<data::Sampler(const data::Dataset<data::Example>& data, int64_t of_step)> order = {};
  /// Instead of `data`: endless micro-batches. Needs --steps.
  std::function<data::Example(int64_t step, int64_t micro_batch, int64_t samples)> batches = {};
  data::DatasetPtr<data::Example> evaluate = nullptr;  ///< evaluation data
  /// Further measures that evaluations average over samples: {"accuracy", ...}.
  std::vector<std::pair<std::string, Measure>> metrics = {};
  /// Metrics from all predictions and targets at once: {{"accuracy", ...}}. Called on every rank.
  std::function<std::vector<std::pair<std::string, double>>(const Predictions&)> compute_metrics = {};
  /// Reduces the model's output for a batch to what predictions keep, such as the index of the largest logit. Default:
  /// they keep the output.
  Measure preprocess_logits_for_metrics = {};
  /// Returns how many targets `loss` averages over in a micro-batch, or -1 if it averages over samples. If this is set,
  /// a step's loss is the mean over all its targets; then plans that split the model allow no ignored targets.
  OfTargets<int64_t> tokens = {};
  std::string evaluated = "val";  ///< prefix of the metrics' names: "val_loss", "val_accuracy"
  int64_t evaluate_batch = 256;   ///< samples per batch of evaluation; with `batches`: the micro-batch size is used
  /// Makes the optimizer, unless the configuration names one. Default: AdamW.
  std::function<std::unique_ptr<optim::Optimizer>(nn::Module&)> optimizer = {};
  /// Makes the schedule of a run of `steps` steps. Not used if the configuration names a schedule, or if it names an
  /// optimizer and `arguments` is false. Default: no schedule.
  std::function<std::unique_ptr<optim::Schedule>(optim::Optimizer&, int64_t steps)> schedule = {};
  /// Number of warmup steps if a schedule in the configuration file says "auto". Below 1: a fraction of all steps.
  double warmup_steps = 0;
  bool arguments = false;  ///< true: Error if the file disagrees with optimizer, steps, warmup or clipping
  /// Defaults for the engine's configuration: {"gradient_clipping", 1}.
  data::Json config = data::Json::Object();
  data::Json facts = data::Json::Object();  ///< for config.json; must be the same when the run is resumed
  data::Json notes = data::Json::Object();  ///< further content of config.json
  std::string unit = "samples";             ///< unit of the speed, per second; a sample has `per_sample` units
  double per_sample = 1;
  /// The metric by which the best checkpoint is kept in best/: "val_loss" keeps the least value, "-val_accuracy" the
  /// greatest, and "ema_val_loss" the least value with averaged parameters. "": no checkpoint is kept there.
  std::string best = {};
  bool load_best = false;  ///< true: end with the model in best/
  /// Lays out the folder like Hugging Face's Trainer: checkpoints are checkpoint-N in the folder itself, each with a
  /// trainer_state.json, and run.json takes the place of config.json.
  std::optional<TrainerStateOptions> state = {};
  std::string resume_from = {};  ///< with --resume: folder of the checkpoint to load; "": the last one
  bool overwrite = false;        ///< true: without --resume, replace a run that the folder already holds
  /// Replaces the model's forward (parallel::DataParallel, say). Only with plans that do not split the model.
  std::function<Variable(const Tensor& input)> forward = {};
  int64_t max_eval_batches = 0;          ///< batches per evaluation during training; 0: all
  int workers = 1;                       ///< threads that make batches of `data`
  bool summary = true;                   ///< false: print the number of parameters instead of the model's summary
  std::vector<Callback> callbacks = {};  ///< called in this order
};

/// Trains and evaluates one model.
class Trainer {
 public:
  /// Collective. Sets the model up under the job's plan. From then on the model may be split over ranks.
  Trainer(TrainJob& job, std::shared_ptr<nn::Module> model, TrainerOptions options);
  template <class M>
  Trainer(TrainJob& job, M& model, TrainerOptions options)
      : Trainer(job, std::shared_ptr<nn::Module>(std::shared_ptr<void>(), &model), std::move(options)) {}
  ~Trainer();

  /// Resumes from the run's checkpoint (--resume), trains, evaluates, saves, and prints the results. A signal ends
  /// training after the current step, with a checkpoint.
  void fit();
  /// Returns means over the evaluation data (`max_batches` batches of it; 0: all): {"val_loss", ...}, in the order of
  /// the metrics, the same on all ranks. With ema.decay, the same metrics of the averaged parameters follow:
  /// {"ema_val_loss", ...}. Collective.
  std::vector<std::pair<std::string, double>> evaluate(int64_t max_batches = 0);
  /// Returns the model's outputs for the samples, the loss and the metrics, on all ranks. Collective.
  Predictions predict(const data::Dataset<data::Example>& samples);
  /// The log: an entry per logging_steps steps, per evaluation and per run. Error without TrainerOptions::state.
  const data::Json::Array& log_history() const;
  int64_t step() const;          ///< steps done
  engine::EngineBase& engine();  ///< the engine, for everything else
  /// The tensors of the whole model, on rank 0; f32 master weights in place of 16-bit parameters. Collective.
  nn::State full_model();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Means over all samples of the values that `measures` returns for a batch. For a single process; without gradients.
std::vector<double> means_of(const data::Dataset<data::Example>& samples, int64_t batch, Device device,
                             const std::function<std::vector<Variable>(const data::Example& batch)>& measures);

/// Counts the tensors and bytes of the last checkpoint in a run's or checkpoints' folder. Error if there is none.
nn::FileTotals held_by(const std::string& folder);
/// Loads parameters and buffers from the last checkpoint in a run's folder or a folder of checkpoints, into a model of
/// one process. average: loads the parameters averaged by ema.decay; Error if the run kept no averages.
void load_model(nn::Module& model, const std::string& folder, bool average = false);

}  // namespace lockstep::train
