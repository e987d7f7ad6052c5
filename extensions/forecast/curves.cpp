// Sorts the metrics of a run into curves and charts. See run.h.
#include <cmath>

#include "base/check.h"
#include "extensions/forecast/run.h"

namespace lockstep::report {
namespace {

using data::Json;

constexpr size_t max_curves = 256;  // more elements of lists are left out

/// "loss" for "val_loss" and "ema_val_loss". "" for names of training, which have no prefix of evaluations.
std::string evaluated_name(std::string_view name) {
  if (name.starts_with("ema_")) name.remove_prefix(4);  // of averaged parameters
  for (const std::string_view prefix : {"val_", "test_", "eval_"})
    if (name.starts_with(prefix)) return std::string(name.substr(prefix.size()));
  return "";
}

/// True for what is no metric: the place in the run, and how long evaluations in a log of Hugging Face took.
bool is_place_or_time(std::string_view name) {
  return name == "step" || name == "epoch" || name.ends_with("_runtime") || name.ends_with("_per_second");
}

/// Collects curves, and their charts by title, in the order in which they first appear.
class Collected {
 public:
  void add(const std::string& title, const std::string& name, double step, const Json& value) {
    if (!value.is_number() || !std::isfinite(value.as_number())) return;
    auto found = place_.find(name);
    if (found == place_.end()) {
      if (place_.size() == max_curves) return;
      const auto [chart, is_new] = chart_.try_emplace(title, charts.size());
      if (is_new) charts.push_back({.title = title});
      std::vector<Curve>& curves = charts[chart->second].curves;
      found = place_.emplace(name, std::pair(chart->second, curves.size())).first;
      curves.push_back({.name = name, .evaluated = !evaluated_name(name).empty()});
    }
    const auto [chart, curve] = found->second;
    charts[chart].curves[curve].points.emplace_back(step, value.as_number());
  }

  std::vector<CurveChart> charts;

 private:
  std::map<std::string, size_t> chart_;                     // the number of a chart, by title
  std::map<std::string, std::pair<size_t, size_t>> place_;  // the numbers of chart and curve, by the curve's name
};

/// The losses of every step of a rank, from the counter of its trace.
Curve loss_of(const RankTrace& t) {
  Curve loss{.name = "loss"};
  std::vector<const TraceEvent*> steps;
  for (const TraceEvent& e : t.events)
    if (e.category == trace::Category::step) steps.push_back(&e);
  size_t i = 0;
  for (const CounterSample& sample : t.samples("loss")) {
    while (i + 1 < steps.size() && steps[i]->end() < sample.at) ++i;
    loss.points.emplace_back(i < steps.size() ? steps[i]->number("step") + 1 : double(loss.points.size() + 1),
                             number_of(sample.values, "loss"));
  }
  return loss;
}

}  // namespace

std::vector<CurveChart> curves_of(const RunFiles& run) {
  Collected all;
  for (const Json& line : run.metrics) {
    const double step = number_of(line, "step", NAN);
    if (!std::isfinite(step)) continue;
    for (const auto& [name, value] : line.as_object()) {
      if (is_place_or_time(name)) continue;
      const std::string evaluated = evaluated_name(name), title = evaluated.empty() ? name : evaluated;
      if (!value.is_array()) all.add(title, name, step, value);
      else
        for (size_t i = 0; i < value.as_array().size(); ++i)
          all.add(title, str(name, "/", i), step, value.as_array()[i]);
    }
  }
  std::vector<CurveChart> charts = std::move(all.charts);
  if (!run.traces.empty()) {
    Curve traced = loss_of(run.traces[0]);
    auto chart = std::ranges::find(charts, std::string_view("loss"), &CurveChart::title);
    if (chart == charts.end() && !traced.points.empty())
      chart = charts.insert(charts.end(), CurveChart{.title = "loss"});
    if (chart != charts.end()) {
      const auto own = std::ranges::find(chart->curves, std::string_view("loss"), &Curve::name);
      if (own == chart->curves.end() && !traced.points.empty())
        chart->curves.insert(chart->curves.begin(), std::move(traced));
      else if (own != chart->curves.end() && traced.points.size() > own->points.size()) *own = std::move(traced);
    }
  }
  std::ranges::stable_sort(charts, {}, [](const CurveChart& c) {
    return c.title == "loss" ? 0 : c.is_evaluated() ? 1 : 2;
  });
  return charts;
}

const Curve* Analysis::curve(std::string_view name) const {
  for (const CurveChart& chart : charts)
    for (const Curve& one : chart.curves)
      if (one.name == name) return &one;
  return nullptr;
}

}  // namespace lockstep::report
