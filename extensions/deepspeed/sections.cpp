// DeepSpeed's sections of the configuration file, and their participants in an engine. See engine/section.h.
#include "data/files.h"
#include "engine/section.h"
#include "extensions/deepspeed/other_keys.h"
#include "extensions/deepspeed/reports.h"

namespace lockstep::engine {
namespace {

/// Profiles one forward, and reports it at the end of its step.
class Profiling : public Participant {
 public:
  Profiling(FlopsProfilerConfig config, const Trained& trained) : config_(std::move(config)), trained_(trained) {}
  void ready() override { profiler_.emplace(trained_.model, config_); }
  void before_forward(int64_t step, int64_t micro_batch) override {
    if (profiler_ && step == config_.profile_step && micro_batch == 0) profiler_->start();
  }
  void after(parallel::Do what, double milliseconds) override {
    if (!profiler_) return;
    if (what == parallel::Do::backward) profiler_->backward(milliseconds);
    else if (profiler_->is_running()) profiler_->stop(milliseconds);
  }
  std::string report(const StepValues& step) override {
    if (!profiler_ || !profiler_->is_done()) return "";
    std::string text = profiler_->report(step.milliseconds);
    profiler_.reset();
    if (!config_.output_file) return text;
    if (trained_.group.rank() == 0) data::write_atomically(*config_.output_file, text + "\n");
    return "";
  }
  std::string against_graphs(bool ever) const override {
    return !ever && profiler_ ? "the FLOPs profiler counts operations" : "";
  }

 private:
  const FlopsProfilerConfig config_;
  const Trained trained_;
  std::optional<FlopsProfiler> profiler_;
};

/// Rank 0 writes the values of each step to the monitors that the file names: TensorBoard, CSV and so on.
class Curves : public Participant, public Monitor {
 public:
  Curves(const Config& config, const Trained& trained) : config_(config), trained_(trained) {}
  void ready() override {
    if (trained_.world.rank() == 0) monitors_ = make_monitors(config_, trained_.say);
  }
  std::string report(const StepValues& step) override {
    std::vector<MonitorEvent> events;
    for (const auto& [name, value] : step.values) events.push_back({"Train/Samples/" + name, value, step.samples});
    write(events);
    return "";
  }
  void write(const std::vector<MonitorEvent>& events) override {
    for (const auto& monitor : monitors_) monitor->write(events);
  }

 private:
  const Config& config_;
  const Trained trained_;
  std::vector<std::unique_ptr<Monitor>> monitors_;
};

std::vector<std::string> reasons(const Config& config, const parallel::Plan& plan) {
  if (!config.section<FlopsProfilerConfig>().enabled || plan.pp * plan.tp == 1) return {};
  return {
      "flops_profiler.enabled: the profiler follows one forward of a whole model; leave it out, or profile without "
      "pp and tp"};
}

/// Section::start of a participant that needs only its own section.
template <class Values, class Part> std::unique_ptr<Participant> start(const Config& config, const Trained& trained) {
  const auto& own = config.section<Values>();
  return own.enabled ? std::make_unique<Part>(own, trained) : nullptr;
}

std::unique_ptr<Participant> start_curves(const Config& config, const Trained& trained) {
  const bool wanted = config.section<TensorBoardConfig>().enabled || config.section<CsvMonitorConfig>().enabled;
  return wanted ? std::make_unique<Curves>(config, trained) : nullptr;
}

using Flops = FlopsProfilerConfig;
using Comms = CommsLoggerConfig;

std::vector<Key> profiler_keys() {
  return {key<&Flops::enabled>("flops_profiler.enabled", any(),
                               "count operations and time of each module at one step; turns wall_clock_breakdown on"),
          key<&Flops::profile_step>("flops_profiler.profile_step", between(1, 1e15), "at which step"),
          key<&Flops::module_depth>("flops_profiler.module_depth", between(-1, 1e6),
                                    "how deep the summary by depth goes; -1: to the innermost modules"),
          key<&Flops::top_modules>("flops_profiler.top_modules", between(1, 1e6), "modules listed for each depth"),
          key<&Flops::detailed>("flops_profiler.detailed", any(), "print every module"),
          key<&Flops::output_file>("flops_profiler.output_file", any(), "write it into this file; null: print")};
}

template <class Values> std::vector<Key> monitor_keys(const std::string& name, const char* what) {
  const auto row = [&]<auto field>(const char* key, const char* doc) {
    Config defaults;
    return working_key(
        (name + key).c_str(),
        [](void* config) -> FieldPointer { return &(static_cast<Config*>(config)->section<Values>().*field); },
        &defaults, any(), "", doc);
  };
  return {
      row.template operator()<&MonitorConfig::enabled>(".enabled", what),
      row.template operator()<&MonitorConfig::output_path>(".output_path", "folder for them; empty: the current one"),
      row.template operator()<&MonitorConfig::job_name>(".job_name", "folder in that folder")};
}

std::vector<Key> logger_keys() {
  return {key<&Comms::enabled>("comms_logger.enabled", any(), "count and time collectives"),
          key<&Comms::verbose>("comms_logger.verbose", any(), "print each collective when it ends"),
          key<&Comms::prof_all>("comms_logger.prof_all", any(), "false: only those of prof_ops"),
          key<&Comms::debug>("comms_logger.debug", any(), "print the caller"),
          key<&Comms::prof_ops>("comms_logger.prof_ops", any(), "names of collectives: all_reduce, all_gather, ...")};
}

/// Keys without an effect of their own.
std::vector<Key> other_keys() {
  return {
#define INERT(path, fallback, range, why) other_key(path, Status::inert, fallback, range, why),
#define OFF(path, fallback, why) other_key(path, Status::off, fallback, any(), why),
#define REMOVED(path, cure) other_key(path, Status::removed, "false", any(), cure),
#define RENAMED(path, now, unused) other_key(path, Status::renamed, "\"" now "\"", any(), unused),
#include "extensions/deepspeed/config_keys.inc"
#undef INERT
#undef OFF
#undef REMOVED
#undef RENAMED
  };
}

}  // namespace

Monitor& monitor(const EngineBase& engine) {
  for (Participant* one : engine.participants())
    if (auto* const curves = dynamic_cast<Curves*>(one)) return *curves;
  fail(str("[monitor] expected tensorboard.enabled or csv_monitor.enabled in ", engine.config().origin,
           ", got a config without; set one of them to true"));
}

std::string comms_summary(const EngineBase& engine, bool show_straggler) {
  for (Participant* one : engine.participants())
    if (auto* const logging = dynamic_cast<CommsLogger*>(one)) return logging->summary(show_straggler);
  fail(str("[comms_summary] expected comms_logger.enabled in ", engine.config().origin,
           ", got a config without; set it to true"));
}

std::vector<Section> deepspeed_sections() {
  const char* const page = "[deepspeed](../extensions/deepspeed/README.md)";
  return {{.name = "flops_profiler",
           .about = "operations and time of each module",
           .page = page,
           .keys = profiler_keys(),
           .reasons = reasons,
           .start = start<Flops, Profiling>},
          {.name = "tensorboard",
           .about = "curves for TensorBoard",
           .page = page,
           .keys = monitor_keys<TensorBoardConfig>("tensorboard", "write TensorBoard event files"),
           .start = start_curves},
          {.name = "csv_monitor",
           .about = "curves in CSV files",
           .page = page,
           .keys = monitor_keys<CsvMonitorConfig>("csv_monitor", "write CSV files")},
          {.name = "comms_logger",
           .about = "bytes and time of each collective",
           .page = page,
           .keys = logger_keys(),
           .start = start<Comms, CommsLogger>},
          {.keys = other_keys(), .saved = "optimizer.onebit.", .appendix = [] { return lists_of(config_keys()); }}};
}

}  // namespace lockstep::engine
