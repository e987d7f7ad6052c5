#pragma once
// What TrainingArguments chooses by name: the optimizer (optim), the schedule (lr_scheduler_type) and the order of
// samples (group_by_length). For arguments.cpp; not installed.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "extensions/hugging_face/arguments.h"

namespace lockstep::train {

/// Throws an Error "[TrainingArguments] ARGUMENT: expected WHAT" unless `good`.
template <class... Words> void expect(bool good, const char* argument, const Words&... what) {
  LOCKSTEP_CHECK(good, "[TrainingArguments] ", argument, ": expected ", what...);
}
/// Error unless `word` is one of `known`.
void check_word(const char* argument, const std::string& word, const std::vector<std::string>& known);

/// Makes the optimizer `optim`: two groups, of which only matrices decay; 8-bit ones have a third, for f32 moments.
std::unique_ptr<optim::Optimizer> make_optimizer(const TrainingArguments& a, nn::Module& model);
/// Error for an unknown `optim`, and for options that it would not use.
void check_optimizer(const TrainingArguments& a);

/// Error for an unknown lr_scheduler_type, and for lr_scheduler_kwargs that it does not take.
void check_schedule(const TrainingArguments& a);
/// Makes the schedule of a run of `steps` steps.
std::unique_ptr<optim::Schedule> make_schedule(const TrainingArguments& a, optim::Optimizer& optimizer, int64_t steps);
/// True for reduce_lr_on_plateau.
bool follows_evaluation(const TrainingArguments& a);
/// Gives the metric of an evaluation to the schedule that make_schedule() made for reduce_lr_on_plateau. Does nothing
/// if the configuration file names another schedule.
void follow_evaluation(const std::string& metric, const std::vector<std::pair<std::string, double>>& metrics,
                       engine::EngineBase& engine);

}  // namespace lockstep::train
