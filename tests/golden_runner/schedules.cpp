// Cases of schedules, which are made by their names as a configuration file's are.
#include <cmath>

#include "engine/params.h"
#include "optim/optim.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::optim;

void run_schedule(const Case& c, Report& report) {
  const auto& base = c.json().at("base_lrs").as_array();
  std::vector<SGD::Group> groups;
  for (const Json& lr : base)
    groups.push_back({{Variable(zeros({1}), true)}, SGDOptions{.lr = lr.as_number(), .momentum = 0.9}});
  SGD optimizer(groups);
  const auto schedule = std::get<engine::MakeSchedule>(engine::read_named(
      engine::ParamsKind::schedule, {c.json().at("schedule").as_string(), c.json().at("args")}))(optimizer);
  const int64_t steps = c.json().at("steps").as_int(), count = int64_t(base.size());
  Tensor rates = empty({steps + 1, count}), momenta = empty({steps + 1, count});
  for (int64_t k = 0; k <= steps; ++k) {
    if (k > 0 && c.has("metric")) schedule->step(c.tensor("metric").to_vector<double>().at(k - 1));
    else if (k > 0) schedule->step();
    for (int g = 0; g < count; ++g) {
      rates[k][g].fill_(optimizer.lr(g));
      momenta[k][g].fill_(optimizer.get(g, "momentum"));
      if (const Json* exact = c.json().find("lr_exact")) {
        const double want = exact->as_array().at(k).as_array().at(g).as_number(), got = optimizer.lr(g);
        if (std::abs(got - want) > 1e-9 * std::max(std::abs(want), 1e-3))
          report.wrong(str("lr[", k, "][", g, "] is ", got, ", not ", want));
      }
    }
  }
  report.compare("lr", rates, c.tensor("lr"));
  if (c.has("momentum")) report.compare("momentum", momenta, c.tensor("momentum"));
}

}  // namespace golden
