#pragma once
// Command-line options for the optimizer, used if the configuration names no optimizer.
#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "train/job.h"
#include "train/optimizer_choices.h"

namespace lockstep::train {

/// Adds --lr, and --optimizer NAME,weight_decay=W,beta1=B,beta2=B,freeze_step=N. With `schedule`, --lr may be
/// PEAK:LAST.
void add_optimizer_options(CLI::App& app, OptimizerOptions& options, bool schedule = false);
/// Error if an optimizer that exchanges gradients is chosen while only one rank trains: there is nothing to exchange.
void check_optimizer(const OptimizerOptions& options, const TrainOptions& all);
/// Error if the command line and the configuration both set the optimizer (options --lr and --optimizer) or the
/// schedule (the options named in `of_schedule`).
void check_configured(const TrainJob& job, const std::vector<const char*>& of_schedule = {});

/// Two groups: matrices with weight decay; biases and norms without (as in GPT-2).
std::vector<OptimizerGroup> matrices_decay(nn::Module& model, double weight_decay);
/// Makes the optimizer. steps: number of steps of the run. Collective if the optimizer is one of optimizer_choices().
std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& options,
                                                 const std::vector<OptimizerGroup>& groups, int64_t steps,
                                                 const TrainJob& job);

}  // namespace lockstep::train
