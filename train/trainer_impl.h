#pragma once
// What a Trainer is made of. trainer.cpp trains and evaluates, run_folder.cpp keeps the run's folder.
#include <cmath>
#include <optional>

#include "data/to_device.h"
#include "engine/checkpoint/lock.h"
#include "tensor/output_file.h"
#include "train/experts.h"
#include "train/trainer.h"

namespace lockstep::train {

using data::Example, data::Json;

/// These samples, one after another.
Example batch_of(const data::Dataset<Example>& from, const std::vector<int64_t>& indices);

struct Trainer::Impl {
  Impl(Job& job, std::shared_ptr<nn::Module> model, TrainerOptions options);
  AutoValues values();
  int64_t steps_in_epoch(int64_t train_batch) const;
  int64_t steps_of(int64_t train_batch) const;
  void check(const engine::Config& config);
  void make_engine(engine::Config config);
  [[noreturn]] void describe_it(const Json& own);
  void open();
  void lock_folder();
  void resume();
  void fit();
  bool look(Json& line);
  void save();
  void write_bits(double loss);
  pipeline::Sample sample(const Example& whole);
  std::vector<std::pair<std::string, double>> evaluate(int64_t most);
  std::vector<std::pair<std::string, double>> evaluate_once(int64_t most);  // with the parameters as they are
  Predictions measure(const data::Dataset<Example>& samples, int64_t most, const std::string& prefix,
                      bool keeps_outputs);
  Measure loss_measure() const;
  void keep_best();
  void write_state();
  int64_t micro_batches() const { return engine->gradient_accumulation_steps() * job.plan().dp; }
  std::string path(const std::string& name) const {
    LOCKSTEP_CHECK(has_folder(), "[Trainer] ", name, ": expected a folder (", called("--out"), "), got none");
    return job.options().out + "/" + name;
  }
  /// An option, by the name that the caller used.
  std::string called(const char* option) const { return job.options().name_of(option); }
  bool has_folder() const { return !job.options().out.empty(); }
  std::string checkpoint_folder() const { return o.state ? job.options().out : path("checkpoints"); }
  std::string config_name() const { return o.state ? "run.json" : "config.json"; }
  bool writes() const { return has_folder() && job.team().leads(); }

  Job& job;
  const TrainerOptions o;
  std::shared_ptr<nn::Module> model;
  const std::string kind;
  std::unique_ptr<optim::Optimizer> trial;  // which "auto" is asked of
  std::vector<std::string> names;           // of the whole model's parameters
  int64_t parameters = 0;
  sequence::ContextOptions context;  // plans with cp: how ranks attend to the sequences that they share
  std::optional<ExpertCounts> experts;
  data::ToDevice to_device;
  optim::GradScaler scaler;
  std::unique_ptr<engine::EngineBase> engine;
  int64_t steps = 0, steps_of_epoch = 0, first = 0, step = 0;
  int64_t eval_every = 0, save_every = 0;  // of the options; where arguments said parts of all steps, these
  data::Files files;
  std::optional<checkpoints::FolderLock> lock;  // of the run's folder, on the rank that leads
  OutputFile metrics, bits;
  std::optional<double> best;
  int64_t worse = 0;                                 // evaluations since
  std::vector<std::pair<std::string, double>> last;  // evaluation
  int64_t looked = -1;                               // the step of it
  double shown_loss = NAN;
  std::optional<TrainerState> state;
  Json result = Json::Object();
};

}  // namespace lockstep::train
