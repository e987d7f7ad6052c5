// The section "summary", and its participant in an engine: curves for TensorBoard, and the state of each rank for
// `lockstep top`. See section.h.
#include "extensions/summary/section.h"

#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "data/json.h"
#include "dist/job.h"
#include "dist/net.h"
#include "engine/config.h"
#include "engine/section.h"
#include "extensions/summary/status.h"
#include "extensions/summary/writer.h"
#include "tensor/memory.h"

namespace lockstep::engine {

std::string summary_tag(const std::string& name, const std::string& evaluated) {
  for (const std::string& prefix : {evaluated, "ema_" + evaluated})
    if (name.starts_with(prefix + "_")) return prefix + "/" + name.substr(prefix.size() + 1);
  return "train/" + name;
}

namespace {

/// Rank 0 writes the values of each step to TensorBoard's files; all ranks report their state.
class Reporting : public Participant {
 public:
  Reporting(const Config& config, const Trained& trained) : config_(config), trained_(trained) {}
  void logged(const LoggedStep& step) override {
    if (trained_.world.rank() == 0 && !config_.section<SummaryConfig>().folder.empty()) add_curves(step);
    if (!step.folder.empty()) report_rank(step);
  }

 private:
  void add_curves(const LoggedStep& step) {
    if (!writer_) {
      // A run that was resumed repeats steps: TensorBoard should hide those that were written before.
      const auto first = step.step > 1 ? std::optional(step.step) : std::nullopt;
      writer_.emplace(config_.section<SummaryConfig>().folder,
                      SummaryWriterOptions{.purge_step = first, .warn = trained_.say});
      writer_->add_text("config", "```json\n" + to_json(config_).dump(2) + "\n```");
    }
    for (const auto& [name, value] : step.line.as_object()) {
      const std::string tag = summary_tag(name, step.evaluated);
      // The line of the run's end has totals, and the last evaluation, which may have been written already.
      if (name == "step" || (step.ended && tag.starts_with("train/"))) continue;
      if (value.is_number()) add_point(tag, value.as_number(), step.step);
      else if (value.is_array())
        for (size_t i = 0; i < value.as_array().size(); ++i)
          if (const data::Json& one = value.as_array()[i]; one.is_number())
            add_point(str(tag, "/", i), one.as_number(), step.step);
    }
    if (step.ended) writer_->flush();
  }
  void add_point(const std::string& tag, double value, int64_t step) {
    const std::pair point{step, value};
    const auto [at, is_new] = written_.try_emplace(tag, point);
    if (!is_new && at->second == point) return;
    at->second = point;
    writer_->add_scalar(tag, value, step);
  }

  /// Writes this rank's state at the first step, at the end, and at most once a second in between.
  void report_rank(const LoggedStep& step) {
    const double now = steady_seconds();
    if (!failed_ && (reported_ < 0 || step.ended || now - reported_ >= 1)) {
      const auto parameters = trained_.model.parameters();
      const MemoryUse memory = memory_report(parameters.empty() ? cpu : parameters[0].device()).total;
      const double seconds = reported_ < 0 ? 0 : now - reported_;
      RankStatus status{
          .rank = trained_.world.rank(),
          .ranks = trained_.world.size(),
          .host = dist::host_name(),
          .pid = ::getpid(),
          .step = step.step,
          .steps = step.steps,
          .time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(),
          .steps_per_second = speed_,
          .unit = step.unit,
          .units = step.units,
          .memory = memory.current,
          .peak = memory.peak,
          .in_collectives = share_,
          .ended = step.ended};
      if (seconds > 0 && step.step > step_) {
        speed_ = status.steps_per_second = double(step.step - step_) / seconds;
        if (dist::World* const world = dist::current_world())
          share_ = status.in_collectives =
              time_in_collectives(world->job->flight.entries(), int64_t(reported_ * 1e9), int64_t(now * 1e9));
      }
      // Training goes on without the file, for example on a host that does not have the folder.
      failed_ = !write_status(step.folder, status);
      reported_ = now, step_ = step.step;
    }
  }

  const Config& config_;
  const Trained trained_;
  std::optional<SummaryWriter> writer_;
  std::map<std::string, std::pair<int64_t, double>> written_;  // the last point of each curve
  double reported_ = -1, speed_ = 0, share_ = 0;               // seconds of the last report (< 0: none), and its values
  int64_t step_ = 0;
  bool failed_ = false;
};

std::unique_ptr<Participant> start_reporting(const Config& config, const Trained& trained) {
  return std::make_unique<Reporting>(config, trained);
}

}  // namespace

std::vector<Section> summary_sections() {
  return {{.name = "summary",
           .about = "curves of a Trainer for TensorBoard",
           .page = "[summary](../extensions/summary/README.md)",
           .keys = {key<&SummaryConfig::folder>("summary.folder", any(),
                                                "folder for TensorBoard event files with every value of metrics.jsonl; "
                                                "empty: none (DeepSpeed has no such section)")},
           .start = start_reporting}};
}

}  // namespace lockstep::engine
