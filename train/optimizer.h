#pragma once
// Command-line options for the optimizer, used if the configuration names no optimizer.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "train/job.h"

namespace lockstep::train {

/// Values of --lr and --optimizer.
struct OptimizerOptions {
  std::string name = "adamw";  ///< a name known to --optimizer
  double lr = 1e-3;
  double last_lr = -1;  ///< last learning rate of a schedule; -1: the schedule's default
  double weight_decay = 0.01, beta1 = 0.9, beta2 = 0.999;
  int64_t freeze_step = 0;  ///< 1-bit optimizers: steps before compression; 0: a fifth of all steps
};
/// Adds --lr, and --optimizer NAME,weight_decay=W,beta1=B,beta2=B,freeze_step=N. With `schedule`, --lr may be
/// PEAK:LAST.
void add_optimizer_options(CLI::App& app, OptimizerOptions& options, bool schedule = false);
/// Error for a 1-bit optimizer if only one rank trains: it has nothing to communicate.
void check_optimizer(const OptimizerOptions& options, const Options& all);
/// Error if the command line and the configuration both set the optimizer (options --lr and --optimizer) or the
/// schedule (the options named in `of_schedule`).
void check_configured(const Job& job, const std::vector<const char*>& of_schedule = {});

/// Parameters with a common weight decay.
struct OptimizerGroup {
  std::vector<Variable> parameters;
  double weight_decay = 0;
};
/// Two groups: matrices with weight decay; biases and norms without (as in GPT-2).
std::vector<OptimizerGroup> matrices_decay(nn::Module& model, double weight_decay);
/// Makes the optimizer. steps: number of steps of the run. Collective for the 1-bit optimizers, which need ranks.
std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& options,
                                                 const std::vector<OptimizerGroup>& groups, int64_t steps,
                                                 const Job& job);

}  // namespace lockstep::train
