#pragma once
// Which optimizer a program trains with.
#include <memory>
#include <string>
#include <vector>

#include "apps/common/parallel.h"
#include "data/json.h"

namespace apps {

struct OptimizerOptions {
  std::string name = "adamw";  ///< or onebit-adam, onebit-lamb, zero-one-adam, onebit-sgd
  int64_t freeze_step = 0;     ///< exact steps of the 1-bit ones; 0: a fifth of all steps
};
void add_optimizer_options(CLI::App& app, OptimizerOptions& options, const std::string& group = "");

struct OptimizerGroup { std::vector<lockstep::Variable> parameters; double weight_decay = 0; };
struct Betas { double beta1 = 0.9, beta2 = 0.999; };
/// `steps`: of the whole run. Collective for the 1-bit ones, which need ranks (Error).
std::unique_ptr<lockstep::optim::Optimizer> make_optimizer(const OptimizerOptions& options, const std::vector<OptimizerGroup>& groups, double lr, const Betas& betas, int64_t steps, const Team& team);

/// Puts the bytes that a step of a 1-bit optimizer sends into the figures of a run.
void add_volume(lockstep::data::Json& result, const lockstep::optim::Optimizer& optimizer);

}  // namespace apps
