#include "apps/common/optimizer.h"

#include <algorithm>

#include "apps/common/cli.h"
#include "onebit/onebit.h"
#include "optim/optim.h"

namespace apps {

using namespace lockstep;

void add_optimizer_options(CLI::App& app, OptimizerOptions& o, const std::string& group) {
  const auto add = [&](CLI::Option* option) { if (!group.empty()) option->group(group); };
  add(app.add_option("--optimizer", o.name, "adamw; or one that sends a bit a number between ranks: onebit-adam, onebit-lamb, zero-one-adam, onebit-sgd")
          ->check(CLI::IsMember({"adamw", "onebit-adam", "onebit-lamb", "zero-one-adam", "onebit-sgd"}))->capture_default_str());
  add(app.add_option("--freeze-step", o.freeze_step, "1-bit optimizers: exact steps before compression (default: a fifth of all steps)")->check(whole(1, most_steps)));
}

namespace {

template <class Optimizer, class Options>
std::unique_ptr<optim::Optimizer> make(const std::vector<OptimizerGroup>& groups, Options options, const Team& team) {
  std::vector<typename Optimizer::Group> all;
  for (const OptimizerGroup& g : groups) {
    options.weight_decay = g.weight_decay;
    all.push_back({g.parameters, options});
  }
  if constexpr (std::is_same_v<Optimizer, optim::AdamW>) return std::make_unique<Optimizer>(all);
  else return std::make_unique<Optimizer>(all, team.group());
}

}  // namespace

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& o, const std::vector<OptimizerGroup>& groups, double lr, const Betas& b, int64_t steps, const Team& team) {
  if (o.name == "adamw") {
    LOCKSTEP_CHECK(o.freeze_step == 0, "--freeze-step ", o.freeze_step, " is for 1-bit optimizers; add --optimizer onebit-adam");
    return make<optim::AdamW>(groups, optim::AdamWOptions{.lr = lr, .beta1 = b.beta1, .beta2 = b.beta2}, team);
  }
  LOCKSTEP_CHECK(team.group(), "--optimizer ", o.name, " compresses what ranks tell each other, so it needs ranks that train together: start it with lockstep run -n N -- ..., or give --ranks N");
  const double freeze = double(o.freeze_step > 0 ? o.freeze_step : std::max<int64_t>(steps / 5, 1));
  if (o.name == "onebit-adam") return make<onebit::OneBitAdam>(groups, onebit::OneBitAdamOptions{.lr = lr, .beta1 = b.beta1, .beta2 = b.beta2, .freeze_step = freeze}, team);
  if (o.name == "onebit-lamb") return make<onebit::OneBitLamb>(groups, onebit::OneBitLambOptions{.lr = lr, .beta1 = b.beta1, .beta2 = b.beta2, .freeze_step = freeze}, team);
  if (o.name == "zero-one-adam") return make<onebit::ZeroOneAdam>(groups, onebit::ZeroOneAdamOptions{.lr = lr, .beta1 = b.beta1, .beta2 = b.beta2, .var_freeze_step = freeze}, team);
  return make<onebit::OneBitSGD>(groups, onebit::OneBitSGDOptions{.lr = lr, .momentum = b.beta1, .freeze_step = freeze}, team);
}

void add_volume(data::Json& result, const optim::Optimizer& optimizer) {
  const auto* sender = dynamic_cast<const onebit::Optimizer*>(&optimizer);
  if (!sender) return;
  const onebit::Volume& v = sender->volume();
  result["exact_steps"] = v.exact_steps;
  result["bytes_of_exact_step"] = v.exact_bytes / std::max<int64_t>(v.exact_steps, 1);
  result["compressed_steps"] = v.compressed_steps;
  result["bytes_of_compressed_step"] = v.compressed_bytes / std::max<int64_t>(v.compressed_steps, 1);
}

}  // namespace apps
