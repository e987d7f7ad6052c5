#pragma once
// Hugging Face's trainer_state.json: the settings of a run, its progress, and its log.
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"

namespace lockstep::train {

/// Collects the log and writes trainer_state.json.
class TrainerState {
 public:
  /// Settings of the run.
  struct Options {
    double logging_steps = 500, eval_steps = 500, save_steps = 500;
    int64_t train_batch_size = 0;
    double num_train_epochs = 0;
    int64_t max_steps = 0, steps_of_epoch = 0;
    double samples_of_step = 0;
    /// Returns `given` as a number of steps. A `given` below 1 is a fraction of max_steps.
    int64_t whole(double given) const { return int64_t(given < 1 ? std::ceil(given * double(max_steps)) : given); }
  };
  using Values = std::vector<std::pair<std::string, double>>;  ///< {"eval_loss", ...}

  TrainerState() = default;
  /// Begins the state of a run with these settings.
  explicit TrainerState(const Options& options) : o_(options) {}

  /// Records a step. Every logging_steps the mean loss goes into the log.
  void step(int64_t step, double loss, double lr, double grad_norm);
  /// Logs an evaluation of this many samples and batches.
  void evaluated(const Values& values, double seconds, int64_t samples, int64_t batches);
  /// Records the best model so far and its checkpoint.
  void best(double metric, const std::string& folder);
  const std::string& best_folder() const { return best_folder_; }  ///< "" if there is none
  void forget_best() { best_.reset(), best_folder_.clear(); }      ///< for a best checkpoint that is gone
  /// Adds the last entry to the log. first: the step that this process started from.
  void end(double seconds, int64_t first);

  const data::Json::Array& log() const { return log_; }  ///< all entries
  /// The content of trainer_state.json. to_go_on: true adds the fields that load() needs.
  data::Json json(bool to_go_on = false) const;
  /// Restores progress and log from what json(true) returned. The settings stay those of the constructor.
  void load(const data::Json& saved);

 private:
  data::Json entry(data::Json::Object values) const;
  double epoch() const;

  Options o_;
  data::Json::Array log_;
  int64_t step_ = 0, logged_ = 0;
  double sum_ = 0, total_ = 0;  // sum_: of losses since the last log entry; total_: of the losses before
  std::optional<double> best_;
  int64_t best_step_ = 0;
  std::string best_folder_;
};

}  // namespace lockstep::train
