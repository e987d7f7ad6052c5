// Counts the FLOPs of modules: see FlopsProfiler in reports.h.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "extensions/deepspeed/reports.h"

namespace lockstep::engine {

namespace {

/// Returns a number as text with two decimals and a unit, such as "12.30 M" for 12.3 million.
std::string short_number(double value) {
  const char* const units[] = {"", " K", " M", " G", " T", " P"};
  int unit = 0;
  for (; value >= 1000 && unit < 5; ++unit) value /= 1000;
  const bool is_integral = unit == 0 && value == double(int64_t(value));
  return fmt::format("{:.{}f}{}", value, is_integral ? 0 : 2, units[unit]);
}
std::string milliseconds(double value) { return fmt::format("{:.2f} ms", value); }
std::string part(double value, double of) { return fmt::format("{:.2f}%", of > 0 ? 100 * value / of : 0); }
double per_second(double flops, double ms) { return ms > 0 ? flops / ms * 1000 : 0; }

}  // namespace

FlopsProfiler::FlopsProfiler(nn::Module& model, FlopsProfilerConfig config)
    : model_(model), config_(std::move(config)) {
  for (auto& [name, module] : model.named_modules()) {
    const size_t row = rows_.size();
    rows_.push_back({.name = name,
                     .kind = module->kind(),
                     .options = module->options(),
                     .depth = name.empty() ? 0 : int(std::count(name.begin(), name.end(), '.')) + 1,
                     .parameters = module->parameter_count()});
    const int before = module->before_forward([this, row](nn::Module&, const std::vector<Variable>&) { enter(row); });
    const int after =
        module->after_forward([this, row](nn::Module&, const std::vector<Variable>&, const Variable&) { leave(row); });
    for (const int id : {before, after}) hooks_.emplace_back(module->calls(), id);
  }
}

FlopsProfiler::~FlopsProfiler() {
  for (auto& [calls, id] : hooks_) calls.remove_hook(id);
}

void FlopsProfiler::start() {
  if (!done_) counter_.emplace();
}

void FlopsProfiler::enter(size_t row) {
  if (is_running()) open_.push_back({row, counter_->count(), steady_seconds()});
}

void FlopsProfiler::leave(size_t row) {
  if (!is_running()) return;
  // No hook sees the end of a forward() without Variables in its result: such a module counts until its parent ends.
  while (!open_.empty()) {
    const Open ended = open_.back();
    open_.pop_back();
    rows_[ended.row].macs += counter_->count() - ended.macs;
    rows_[ended.row].milliseconds += 1e3 * (steady_seconds() - ended.start);
    if (ended.row == row) return;
  }
}

void FlopsProfiler::stop(double spent) {
  if (!is_running()) return;
  leave(SIZE_MAX);
  rows_[0].macs = counter_->count();
  rows_[0].milliseconds = spent;
  counter_.reset();
  done_ = true;
}

std::string FlopsProfiler::report(double step) const {
  const ModuleProfile& all = rows_[0];
  const double flops = 2.0 * double(all.macs), backward = std::max(backward_, 0.0);
  std::string text =
      str("flops profiler: ", all.kind, ", one micro-batch at rank 0, step ", config_.profile_step, "\n");
  const auto line = [&](const char* what, const std::string& value) {
    text += fmt::format("  {:<32}{}\n", what, value);
  };
  line("params", short_number(double(all.parameters)));
  line("fwd MACs", short_number(double(all.macs)) + "MACs");
  line("fwd flops", short_number(flops));
  line("fwd + bwd flops", short_number(3 * flops));
  line("fwd latency", milliseconds(all.milliseconds));
  line("bwd latency", milliseconds(backward));
  line("fwd FLOPS", short_number(per_second(flops, all.milliseconds)) + "FLOPS");
  line("bwd FLOPS (flops: 2 x fwd)", short_number(per_second(2 * flops, backward)) + "FLOPS");
  line("fwd + bwd FLOPS", short_number(per_second(3 * flops, all.milliseconds + backward)) + "FLOPS");
  line("step latency", milliseconds(step));

  int deepest = 0;
  for (const ModuleProfile& row : rows_) deepest = std::max(deepest, row.depth);
  const int last = config_.module_depth < 0 ? deepest : int(std::min<int64_t>(deepest, config_.module_depth));
  text += str("  top ", config_.top_modules, " kinds of modules by depth\n");
  for (int depth = 0; depth <= last; ++depth) {
    std::map<std::string, ModuleProfile> kinds;
    for (const ModuleProfile& row : rows_) {
      if (row.depth != depth) continue;
      ModuleProfile& kind = kinds[row.kind];
      kind.parameters += row.parameters;
      kind.macs += row.macs;
      kind.milliseconds += row.milliseconds;
    }
    const auto top = [&](auto value, auto print) {
      std::vector<std::pair<double, std::string>> order;
      for (const auto& [name, kind] : kinds) order.emplace_back(-double(value(kind)), name);
      std::sort(order.begin(), order.end());
      std::string list;
      for (size_t i = 0; i < order.size() && int64_t(i) < config_.top_modules; ++i)
        list += (i ? ", " : "") + order[i].second + ": " + print(-order[i].first);
      return "{" + list + "}";
    };
    text +=
        str("    depth ", depth, ": params ", top([](const ModuleProfile& m) { return m.parameters; }, short_number),
            ", MACs ", top([](const ModuleProfile& m) { return m.macs; }, short_number), ", fwd latency ",
            top([](const ModuleProfile& m) { return m.milliseconds; }, milliseconds), "\n");
  }
  if (config_.detailed) {
    text += "  modules: params, MACs, fwd latency (each with its part of all), fwd FLOPS\n";
    for (const ModuleProfile& row : rows_) {
      if (row.depth > last) continue;
      const std::string name = row.name.substr(row.name.rfind('.') + 1);
      text += std::string(4 + 2 * size_t(row.depth), ' ') + (name.empty() ? "" : "(" + name + ") ") + row.kind + ": " +
              short_number(double(row.parameters)) + " " + part(double(row.parameters), double(all.parameters)) + ", " +
              short_number(double(row.macs)) + "MACs " + part(double(row.macs), double(all.macs)) + ", " +
              milliseconds(row.milliseconds) + " " + part(row.milliseconds, all.milliseconds) + ", " +
              short_number(per_second(2 * double(row.macs), row.milliseconds)) + "FLOPS" +
              (row.options.empty() ? "" : "  [" + row.options + "]") + "\n";
    }
  }
  text.pop_back();
  return text;
}

}  // namespace lockstep::engine
