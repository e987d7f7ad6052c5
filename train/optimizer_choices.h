#pragma once
// Optimizers of extensions that --optimizer can name. They exchange gradients between ranks (engine/exchange.h).
//
// An extension's meson.build sets `optimizer_choices = ['NAME']`, and one of its sources defines
// std::vector<OptimizerChoices> lockstep::train::NAME(). meson generates the list, from the extensions that are built
// (lockstep/list.cpp.in).
#include <memory>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "optim/optimizer.h"

namespace lockstep::train {

/// Values of --lr and --optimizer.
struct OptimizerOptions {
  std::string name = "adamw";  ///< a name known to --optimizer
  double lr = 1e-3;
  double last_lr = -1;  ///< last learning rate of a schedule; -1: the schedule's default
  double weight_decay = 0.01, beta1 = 0.9, beta2 = 0.999;
  int64_t freeze_step = 0;  ///< for OptimizerChoices: uncompressed steps at the start; 0: a fifth of all steps
};
/// Parameters with a common weight decay.
struct OptimizerGroup {
  std::vector<Variable> parameters;
  double weight_decay = 0;
};

/// Optimizers of one kind.
struct OptimizerChoices {
  std::string about, plural;       ///< "a 1-bit optimizer, which sends 1 bit per number", "1-bit optimizers"
  std::vector<std::string> names;  ///< "onebit-adam"
  std::string freezing;            ///< about freeze_step, for --help
  /// Makes the optimizer options.name. freeze_step: number of exact (uncompressed) steps. Collective.
  std::unique_ptr<optim::Optimizer> (*make)(const OptimizerOptions& options, const std::vector<OptimizerGroup>& groups,
                                            double freeze_step, dist::ProcessGroup& ranks) = nullptr;
};

/// The choices of the extensions that are built.
const std::vector<OptimizerChoices>& optimizer_choices();

}  // namespace lockstep::train
