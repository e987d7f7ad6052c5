// SWALR. See average.h.
#include "optim/average.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::optim {

SWALR::SWALR(Optimizer& optimizer, Options options) : Schedule(optimizer, options.swa_lr), o_(std::move(options)) {
  check_groups("SWALR", "swa_lr", o_.swa_lr);
  LOCKSTEP_CHECK(o_.anneal_epochs >= 0, "[SWALR] expected anneal_epochs >= 0, got ", o_.anneal_epochs);
  LOCKSTEP_CHECK(o_.anneal_strategy == "cos" || o_.anneal_strategy == "linear",
                 "[SWALR] expected anneal_strategy 'cos' or 'linear', got '", o_.anneal_strategy, "'");
  apply();
}
double SWALR::value(int g, int64_t t) const {
  const double part = o_.anneal_epochs == 0 ? 1 : std::min(1.0, double(t) / double(o_.anneal_epochs));
  const double share = o_.anneal_strategy == "linear" ? part : (1 - std::cos(std::numbers::pi * part)) / 2;
  return base(g) + (o_.swa_lr[g] - base(g)) * share;
}

}  // namespace lockstep::optim
