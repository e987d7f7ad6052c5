#pragma once
// The training of a model, whole: steps under any plan and configuration, evaluation, checkpoints and resume, Ctrl-C,
// metrics, traces.
//
//   train::Trainer trainer(job, net, {.loss = loss, .data = digits, .evaluate = test, .metrics = {{"accuracy",
//   accuracy}}}); trainer.fit();
//
// A step is one call of the engine (engine/engine.h), whatever the plan: with stages and slices the model's
// fields() and layers() say how it is cut. The folder of a run (--out) has config.json, metrics.jsonl (a line for each
// step) and checkpoints/ (engine/checkpoint/checkpoint.h), that any other plan goes on from.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "engine/engine.h"
#include "nn/build_empty.h"
#include "parallel/sequence/context_parallel.h"
#include "train/job.h"
#include "train/trainer_state.h"

namespace lockstep::train {

/// Of a micro-batch: what the model gave, and what it should have given.
using Measure = std::function<Variable(const Variable& output, const Tensor& target)>;
/// After a step.
struct StepInfo {
  int64_t step = 0;  ///< from 1
  double loss = 0;   ///< mean over all micro-batches
  double lr = 0, grad_norm = 0;
};

/// What a model gave for samples, in their order, and what it should have given. On the CPU.
struct Predictions {
  Tensor predictions, label_ids;
  std::vector<std::pair<std::string, double>> metrics;  ///< {"test_loss", ...}
};

struct TrainerOptions {
  Measure loss = {};                               ///< a mean over samples; default: what the model names in layers()
  data::DatasetPtr<data::Example> data = nullptr;  ///< dealt in epochs, in an order that follows from the seed
  std::function<data::Example(int64_t step, int64_t micro_batch, int64_t samples)> batches =
      {};  ///< in its place: micro-batches that have no end; --steps says how many
  data::DatasetPtr<data::Example> evaluate = nullptr;
  std::vector<std::pair<std::string, Measure>> metrics = {};  ///< means over samples, too: {"accuracy", ...}
  /// Of all predictions and targets at once: {{"accuracy", ...}}. On every rank.
  std::function<std::vector<std::pair<std::string, double>>(const Predictions&)> compute_metrics = {};
  /// Of how many targets of a micro-batch `loss` is the mean; -1: not counted. A step's loss is then the mean over the
  /// targets of all its micro-batches. Plans that cut the model want all targets to count.
  std::function<int64_t(const Tensor& target)> tokens = {};
  std::string evaluated = "val";  ///< before their names: "val_loss", "val_accuracy"
  int64_t evaluate_batch = 256;   ///< samples; with `batches`: those of a micro-batch
  std::function<std::unique_ptr<optim::Optimizer>(nn::Module&)> optimizer =
      {};  ///< where the configuration names none; default: AdamW
  std::function<std::unique_ptr<optim::Schedule>(optim::Optimizer&, int64_t steps)> schedule = {};
  double warmup_steps = 0;  ///< of a schedule in the file whose warmup_num_steps is "auto"; below 1: a part of all
  bool arguments = false;   ///< what a file says must agree with optimizer, steps, warmup and clipping
  data::Json config =
      data::Json::Object();  ///< of the engine, for keys that neither file nor options name: {"gradient_clipping", 1}
  data::Json facts = data::Json::Object();  ///< what a run that goes on must have the same, for config.json
  data::Json notes = data::Json::Object();  ///< what else config.json tells of it
  std::string unit = "samples";             ///< of what is counted, `per_sample` of them in each
  double per_sample = 1;
  std::string best = {};   ///< "val_loss", or "ema_val_loss" of the average: keep the checkpoint with the least
                           ///< ("-val_accuracy": the most) in best/
  bool load_best = false;  ///< ends with the model of best/
  /// The folder of the run as Hugging Face's Trainer has it: checkpoints are checkpoint-N in the folder itself, with a
  /// trainer_state.json in each, and what config.json says of the run is in run.json.
  std::optional<TrainerState::Options> state = {};
  std::string resume_from = {};  ///< with --resume: a checkpoint's folder; "": the last one
  int64_t patience = 0;          ///< evaluations without a better one, after which training ends; 0: never
  std::function<Variable(const Tensor& input)> forward =
      {};  ///< in place of the model's own (parallel::DataParallel, say); it goes with plans that leave the model whole
  int64_t evaluate_most = 0;            ///< batches of an evaluation during training; 0: all
  int workers = 1;                      ///< threads that make batches of `data`
  std::function<void()> on_start = {};  ///< when all is checked and loaded, before the run's folder is touched; says
                                        ///< what is trained in place of the model's summary
  std::function<void(const StepInfo&, data::Json& line)> on_step = {};  ///< may add to the line of metrics.jsonl
  std::function<void(data::Json& result)> on_end =
      {};  ///< with the model trained and saved; may add to the closing line. On every rank
};

class Trainer {
 public:
  /// Collective. Sets the model up under the job's plan: it is cut, or kept in parts, from here on.
  Trainer(Job& job, std::shared_ptr<nn::Module> model, TrainerOptions options);
  template <class M>
  Trainer(Job& job, M& model, TrainerOptions options)
      : Trainer(job, std::shared_ptr<nn::Module>(std::shared_ptr<void>(), &model), std::move(options)) {}
  ~Trainer();

  /// Goes on from the run's checkpoint (--resume), trains, evaluates, saves, and prints the closing line. A signal ends
  /// it after its step, with a checkpoint.
  void fit();
  /// Means over the whole of `evaluate` (or `most` batches of it): {"val_loss", ...}, in the order of the metrics; the
  /// same on all ranks. With ema.decay the same of the average of the parameters follow: {"ema_val_loss", ...}.
  std::vector<std::pair<std::string, double>> evaluate(int64_t most = 0);
  /// What the model gives for samples, on all ranks, and the loss and metrics of them. Collective.
  Predictions predict(const data::Dataset<data::Example>& samples);
  /// With TrainerOptions::state: a line for every logging_steps, evaluation and run.
  const data::Json::Array& log_history() const;
  int64_t step() const;
  engine::EngineBase& engine();
  /// The whole model's tensors, on the rank that leads. Collective.
  nn::State whole_model();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The means over all samples of what `measures` gives of a batch of them, on this device and without gradients: for a
/// model of one process.
std::vector<double> means_of(const data::Dataset<data::Example>& samples, int64_t batch, Device device,
                             const std::function<std::vector<Variable>(const data::Example& batch)>& measures);

/// What the last checkpoint of a run (or of the folder of checkpoints) holds. Error when there is none.
nn::Held held_by(const std::string& folder);
/// The parameters and buffers of a run's last checkpoint (or that of the folder of checkpoints), into a model of one
/// process. average: parameters are the average of ema.decay; an Error when the run kept none.
void load_model(nn::Module& model, const std::string& folder, bool average = false);

}  // namespace lockstep::train
