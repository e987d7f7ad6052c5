// Counts evaluations without improvement. See early_stopping.h.
#include "extensions/metrics/early_stopping.h"

#include <cmath>
#include <memory>

namespace lockstep::metrics {

namespace {

/// The best value so far, multiplied by -1 if greater values are better; NaN: none. worse: evaluations since.
struct Watched {
  double best = NAN;
  int64_t worse = 0;
};

double value_of(const std::string& name, const std::vector<std::pair<std::string, double>>& metrics) {
  std::string known;
  for (const auto& [other, value] : metrics) {
    if (other == name) return value;
    known += (known.empty() ? "" : ", ") + other;
  }
  fail("[early_stopping] expected the metric " + name + " in evaluations, got " + known + "; choose one of them");
}

}  // namespace

train::Callback early_stopping(const EarlyStoppingOptions& o) {
  LOCKSTEP_CHECK(o.patience >= 1, "[early_stopping] expected patience >= 1, got ", o.patience);
  LOCKSTEP_CHECK(o.min_delta >= 0, "[early_stopping] expected min_delta >= 0, got ", o.min_delta);
  const bool is_greater_better = o.metric.starts_with('-');
  const std::string name = o.metric.substr(is_greater_better);
  const auto watched = std::make_shared<Watched>();
  train::Callback callback;
  callback.on_evaluate = [=](train::RunState& run) {
    const double found = value_of(name, run.metrics), value = is_greater_better ? -found : found;
    const auto is_better_by = [&](double delta) {
      return std::isnan(watched->best) ? !std::isnan(value) : watched->best - value > delta;
    };
    watched->worse = is_better_by(o.min_delta) ? 0 : watched->worse + 1;
    if (is_better_by(o.follows_small_steps ? 0 : o.min_delta)) watched->best = value;
    if (watched->worse < o.patience) return;
    run.control.stop = true;
    run.control.reason =
        str("no better ", name, " in ", watched->worse, watched->worse == 1 ? " evaluation" : " evaluations");
  };
  callback.name = "early_stopping " + o.metric;
  callback.state = [watched] {
    return data::Json(data::Json::Object{{"best", watched->best}, {"worse", watched->worse}});
  };
  callback.load_state = [watched](const data::Json& saved) {
    const data::Json& best = saved.at("best");  // JSON has null for NaN
    *watched = {best.is_number() ? best.as_number() : NAN, saved.at("worse").as_int()};
  };
  return callback;
}

}  // namespace lockstep::metrics
