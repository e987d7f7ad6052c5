// The log and progress in trainer_state.json: recorded, written and loaded. See trainer_state.h.
#include "train/trainer_state.h"

#include <algorithm>
#include <cmath>

namespace lockstep::train {

using data::Json;

int64_t TrainerStateOptions::to_steps(double given) const {
  return int64_t(given < 1 ? std::ceil(given * double(max_steps)) : given);
}

double TrainerState::epoch() const { return o_.steps_of_epoch > 0 ? double(step_) / double(o_.steps_of_epoch) : 0; }

/// Adds a log entry, with sorted keys as Hugging Face writes it.
void TrainerState::add_entry(Json::Object values) {
  values.emplace_back("epoch", epoch());
  values.emplace_back("step", step_);
  std::sort(values.begin(), values.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  log_.push_back(std::move(values));
  if (o_.on_log) o_.on_log(step_, log_.back());
}

void TrainerState::step(int64_t step, double loss, double lr, double grad_norm) {
  step_ = step;
  sum_ += loss;
  if (step % o_.to_steps(o_.logging_steps) != 0) return;
  add_entry({{"loss", sum_ / double(step - logged_)}, {"learning_rate", lr}, {"grad_norm", grad_norm}});
  total_ += sum_;
  sum_ = 0;
  logged_ = step;
}

void TrainerState::evaluated(const Values& values, double seconds, int64_t samples, int64_t batches) {
  Json::Object all(values.begin(), values.end());
  const double time = std::max(seconds, 1e-9);
  all.emplace_back("eval_runtime", seconds);
  all.emplace_back("eval_samples_per_second", double(samples) / time);
  all.emplace_back("eval_steps_per_second", double(batches) / time);
  add_entry(std::move(all));
}

void TrainerState::best(double metric, const std::string& folder) {
  best_ = metric;
  best_step_ = step_;
  best_folder_ = folder;
}

void TrainerState::end(double seconds, int64_t first) {
  const double time = std::max(seconds, 1e-9), steps = double(step_ - first);
  add_entry({{"total_flos", 0.},
             {"train_loss", step_ > 0 ? (total_ + sum_) / double(step_) : 0},
             {"train_runtime", seconds},
             {"train_samples_per_second", steps * o_.samples_of_step / time},
             {"train_steps_per_second", steps / time}});
}

Json TrainerState::json(bool to_go_on) const {
  Json all(Json::Object{});
  all["best_global_step"] = best_ ? Json(best_step_) : Json();
  all["best_metric"] = best_ ? Json(*best_) : Json();
  all["best_model_checkpoint"] = best_ ? Json(best_folder_) : Json();
  all["epoch"] = epoch();
  all["eval_steps"] = o_.to_steps(o_.eval_steps);
  all["global_step"] = step_;
  all["is_hyper_param_search"] = false;
  all["is_local_process_zero"] = true;
  all["is_world_process_zero"] = true;
  all["log_history"] = log_;
  all["logging_steps"] = o_.to_steps(o_.logging_steps);
  all["max_steps"] = o_.max_steps;
  all["num_input_tokens_seen"] = 0;
  all["num_train_epochs"] = int64_t(std::ceil(o_.num_train_epochs));
  all["save_steps"] = o_.to_steps(o_.save_steps);
  all["stateful_callbacks"] = Json::Object{};
  all["total_flos"] = 0.;
  all["train_batch_size"] = o_.train_batch_size;
  all["trial_name"] = Json();
  all["trial_params"] = Json();
  if (to_go_on) all["loss_since_log"] = sum_, all["loss_in_log"] = total_, all["last_logged"] = logged_;
  return all;
}

void TrainerState::load(const Json& saved) {
  const std::string where = "trainer_state.json: ";
  step_ = saved.at("global_step", where).as_int(where + "global_step");
  log_ = saved.at("log_history", where).as_array(where + "log_history");
  const Json* logged = saved.find("last_logged");
  // Use the saved logging_steps, because the setting may have changed since.
  const int64_t every = saved.at("logging_steps", where).as_int(where + "logging_steps");
  logged_ = logged ? logged->as_int(where + "last_logged") : step_ / every * every;
  const auto number = [&](const char* key) {  // NaN was saved as null
    const Json& found = saved.at(key, where);
    return found.is_number() ? found.as_number() : NAN;
  };
  sum_ = number("loss_since_log"), total_ = number("loss_in_log");
  const Json& metric = saved.at("best_metric", where);
  if (!metric.is_number()) return;
  best_ = metric.as_number();
  best_step_ = saved.at("best_global_step", where).as_int(where + "best_global_step");
  best_folder_ = saved.at("best_model_checkpoint", where).as_string(where + "best_model_checkpoint");
}

}  // namespace lockstep::train
