#pragma once
// Options for which optimizer a program trains with, where the configuration names none.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "train/job.h"

namespace lockstep::train {

struct OptimizerOptions {
  std::string name = "adamw";  ///< one of those that --optimizer takes
  double lr = 1e-3;
  double last_lr = -1;  ///< of a schedule; -1: its own
  double weight_decay = 0.01, beta1 = 0.9, beta2 = 0.999;
  int64_t freeze_step = 0;  ///< exact steps of the 1-bit ones; 0: a fifth of all steps
};
/// --lr, and --optimizer NAME,weight_decay=W,beta1=B,beta2=B,freeze_step=N. schedule: --lr may be PEAK:LAST.
void add_optimizer_options(CLI::App& app, OptimizerOptions& options, bool schedule = false);
/// Error when the options contradict each other, or need ranks that are not there.
void check_optimizer(const OptimizerOptions& options, const Options& all);
/// Error when an option was given of what the configuration says: of the optimizer, or of the schedule (`of_schedule`
/// names them).
void check_configured(const Job& job, const std::vector<const char*>& of_schedule = {});

struct OptimizerGroup {
  std::vector<Variable> parameters;
  double weight_decay = 0;
};
/// Weight decay for matrices, none for biases and norms (GPT-2's).
std::vector<OptimizerGroup> matrices_decay(nn::Module& model, double weight_decay);
/// `steps`: of the whole run. Collective for the 1-bit ones, which need ranks.
std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& options,
                                                 const std::vector<OptimizerGroup>& groups, int64_t steps,
                                                 const Job& job);

}  // namespace lockstep::train
