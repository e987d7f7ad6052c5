#pragma once
// Hugging Face's trainer_state.json: the settings of a run, its progress, and its log.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"
#include "train/trainer.h"

namespace lockstep::train {

/// Collects the log and writes trainer_state.json.
class TrainerState {
 public:
  using Options = TrainerStateOptions;
  using Values = std::vector<std::pair<std::string, double>>;  ///< {"eval_loss", ...}

  TrainerState() = default;
  /// Begins the state of a run with these settings.
  explicit TrainerState(const Options& options) : o_(options) {}

  /// Records a step. Every logging_steps steps, adds the mean loss since the last entry to the log.
  void step(int64_t step, double loss, double lr, double grad_norm);
  /// Logs an evaluation of this many samples and batches.
  void evaluated(const Values& values, double seconds, int64_t samples, int64_t batches);
  /// Records the best model so far and its checkpoint.
  void best(double metric, const std::string& folder);
  const std::string& best_folder() const { return best_folder_; }  ///< "" if there is none
  void forget_best() { best_.reset(), best_folder_.clear(); }      ///< call this if the best checkpoint was removed
  /// Adds the last entry to the log. first: the step that this process started from.
  void end(double seconds, int64_t first);

  const data::Json::Array& log() const { return log_; }  ///< all entries
  /// The content of trainer_state.json. to_go_on: true adds the fields that load() needs.
  data::Json json(bool to_go_on = false) const;
  /// Restores progress and log from what json(true) returned. The settings stay those of the constructor.
  void load(const data::Json& saved);

 private:
  void add_entry(data::Json::Object values);
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
