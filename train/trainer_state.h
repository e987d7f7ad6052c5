#pragma once
// trainer_state.json of Hugging Face's Trainer: what a run was told, how far it is, and its log.
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"

namespace lockstep::train {

class TrainerState {
 public:
  /// What it is told about the run.
  struct Options {
    double logging_steps = 500, eval_steps = 500, save_steps = 500;
    int64_t train_batch_size = 0;
    double num_train_epochs = 0;
    int64_t max_steps = 0, steps_of_epoch = 0;
    double samples_of_step = 0;
    /// Below 1 a number of steps is a part of all.
    int64_t whole(double given) const { return int64_t(given < 1 ? std::ceil(given * double(max_steps)) : given); }
  };
  using Values = std::vector<std::pair<std::string, double>>;

  TrainerState() = default;
  explicit TrainerState(const Options& options) : o_(options) {}

  /// After a step: the mean loss of every logging_steps goes into the log.
  void step(int64_t step, double loss, double lr, double grad_norm);
  /// After an evaluation of so many samples and batches.
  void evaluated(const Values& values, double seconds, int64_t samples, int64_t batches);
  void best(double metric, const std::string& folder);
  const std::string& best_folder() const { return best_folder_; }  ///< "": there is none
  void forget_best() { best_.reset(), best_folder_.clear(); }
  /// The closing entry.
  void end(double seconds, int64_t first);

  const data::Json::Array& log() const { return log_; }
  /// to_go_on: with what load() needs besides Hugging Face's fields.
  data::Json json(bool to_go_on = false) const;
  /// The options stay.
  void load(const data::Json& saved);

 private:
  data::Json entry(data::Json::Object values) const;
  double epoch() const;

  Options o_;
  data::Json::Array log_;
  int64_t step_ = 0, logged_ = 0;
  double sum_ = 0, total_ = 0;  // of losses since the last entry; and of those in entries
  std::optional<double> best_;
  int64_t best_step_ = 0;
  std::string best_folder_;
};

}  // namespace lockstep::train
