#pragma once
// The parts of a Trainer: trainer.cpp trains, trainer_evaluate.cpp evaluates, trainer_values.cpp counts its steps,
// run_folder.cpp keeps the run's folder.
#include <cmath>
#include <optional>

#include "base/output_file.h"
#include "checkpoint/lock.h"
#include "data/to_device.h"
#include "parallel/sequence/context_parallel.h"
#include "train/action.h"
#include "train/experts.h"
#include "train/trainer.h"
#include "train/trainer_state.h"

namespace lockstep::train {

using data::batch_of, data::Example, data::Json;

/// State and parts of a Trainer.
struct Trainer::Impl {
  Impl(TrainJob& job, std::shared_ptr<nn::Module> model, TrainerOptions options);  ///< sets up everything; collective
  /// The program's values that config steps use (program_values.h).
  ProgramValues values();
  /// Steps of an epoch; 0 if data has no epochs.
  int64_t steps_in_epoch(int64_t train_batch) const;
  int64_t steps_of(int64_t train_batch) const;  ///< steps of the whole run
  /// Checks the model's sizes against the plan.
  void check(const engine::Config& config);
  void make_engine(engine::Config config);  ///< splits the model and makes its engine
  /// Performs an action in place of training, and throws Performed.
  [[noreturn]] void perform_instead(const CommandAction& action, const Json& own);
  void open();  ///< checks, resumes, then opens the run's files
  /// Locks the run's folder, so that only one job uses it.
  void lock_folder();
  void resume();  ///< loads the checkpoint
  void fit();     ///< trains, evaluates, saves
  /// Calls the callbacks of an event, then agrees with all ranks on what they ask for, and on signals. Collective.
  void call(Callback::Function Callback::*event);
  void look();                                   ///< evaluates, and keeps the best checkpoint
  void save();                                   ///< writes a checkpoint
  void write_bits(double loss);                  ///< writes a line of --trace-bits
  pipeline::Sample sample(const Example& full);  ///< this rank's part of a sample, on its device
  std::vector<std::pair<std::string, double>> evaluate(int64_t max_batches);  ///< includes averaged parameters
  std::vector<std::pair<std::string, double>> evaluate_once(
      int64_t max_batches);  // evaluates with the current parameters
  /// Returns means over `max_batches` batches (0: all), named with `prefix`. keeps_outputs: also the model's outputs.
  Predictions measure(const data::Dataset<Example>& samples, int64_t max_batches, const std::string& prefix,
                      bool keeps_outputs);
  Measure loss_measure() const;  ///< the loss that was given, or else the model's
  void keep_best();              ///< remembers the best checkpoint
  void write_state();            ///< writes trainer_state.json
  /// Number of micro-batches in a step, on all replicas together.
  int64_t micro_batches() const { return engine->gradient_accumulation_steps() * job.plan().dp; }
  /// The path of a file in the run's folder. Error without --out.
  std::string path(const std::string& name) const {
    LOCKSTEP_CHECK(has_folder(), "[Trainer] ", name, ": expected a folder (", called("--out"), "), got none");
    return job.options().out + "/" + name;
  }
  /// The name by which the program's user knows an option, for Error texts.
  std::string called(const char* option) const { return job.options().name_of(option); }
  bool has_folder() const { return !job.options().out.empty(); }  ///< true if --out was given
  /// The folder with the checkpoints and the file `latest`, which names the last one.
  std::string checkpoint_folder() const { return o.state ? job.options().out : path("checkpoints"); }
  /// Name of the file for the run's configuration.
  std::string config_name() const { return o.state ? "run.json" : "config.json"; }
  /// True if this rank writes the files.
  bool writes() const { return has_folder() && job.team().leads(); }

  TrainJob& job;
  const TrainerOptions o;
  std::shared_ptr<nn::Module> model;
  const std::string kind;
  std::unique_ptr<optim::Optimizer> trial;  // made only to fill in "auto" values
  std::vector<std::string> names;           // names of the parameters of the whole model
  int64_t parameters = 0;
  sequence::ContextOptions context;  // with cp: how ranks attend to shared sequences
  std::optional<ExpertCounts> experts;
  data::ToDevice to_device;
  optim::GradScaler scaler;
  std::unique_ptr<engine::EngineBase> engine;
  int64_t steps = 0, steps_of_epoch = 0, first = 0, step = 0;
  int64_t eval_every = 0, save_every = 0;  // steps between evaluations, steps between saves; never fractions
  data::Files files;
  std::optional<checkpoints::FolderLock> lock;  // lock on the run's folder; rank 0 only
  OutputFile metrics, bits;
  std::optional<double> best;
  std::vector<std::pair<std::string, double>> last;  // results of the last evaluation
  int64_t last_eval_step = -1;                       // step of the last evaluation
  double smoothed_loss = NAN;
  std::optional<TrainerState> state;
  RunState run;
  int signal = 0;  // the signal that ends the training, the same on all ranks
};

}  // namespace lockstep::train
