// What to change when a training runs out of memory, and how many bytes each change saves on the fullest rank. State
// (parameters, gradients, optimizer) is forecast by plan.h for each changed configuration; activations are those that
// the memory ledger has seen.
#include "engine/memory_advice.h"

#include <algorithm>
#include <functional>

#include "engine/check_plan.h"
#include "engine/params.h"
#include "extensions/figures/quantity.h"
#include "extensions/forecast/plan.h"
#include "tensor/memory.h"

namespace lockstep::engine {

using zero::Offload;

NamedConfig named(const optim::Optimizer& optimizer) {
  NamedConfig found;
  for (const NamedType& type : optimizer_types()) {
    if (lower(type.name) != lower(optimizer.name())) continue;
    found.type = type.name;
    if (optimizer.has("momentum")) found.params["momentum"] = optimizer.get(0, "momentum");
  }
  return found;
}

namespace {

struct Change {
  double saves;  ///< bytes
  std::string text;
};

/// All changes that save memory of `run.device`, and what they save.
class Changes {
 public:
  explicit Changes(const OutOfMemoryRun& run)
      : run_(run),
        config_(run.config),
        shape_(shape_of(run.model, 0, 1, 0)),
        // If the model computes on another device, host memory holds only what was offloaded to it.
        computes_here_(run.model.parameters().at(0).device().type == run.device.type) {
    if (config_.optimizer.type.empty()) config_.optimizer = named(run.optimizer);
    now_ = bytes(config_);
    if (computes_here_) add_activations();
    add_state();
    add_offload();
  }

  std::string text() {
    std::ranges::stable_sort(all_, std::greater(), &Change::saves);
    std::string lines;
    for (const Change& one : all_) lines += "  " + one.text + "\n";
    return lines;
  }

 private:
  /// Bytes of state that the fullest rank holds in the memory that ran out.
  double bytes(const Config& config) const {
    const parallel::Plan& p = run_.plan;
    const Forecast forecast = plan(config, shape_, p.dp * p.cp, p.cp, p.ep);
    const RankBytes& rank = forecast.fullest();
    const ZeroConfig& z = forecast.config.zero_optimization;
    double held = computes_here_ ? double(rank.total()) : 0;
    if (!run_.device.is_cpu()) return held;
    if (z.offload_optimizer.device == Offload::cpu) held += double(rank.optimizer_elsewhere);
    if (z.stage == 3 && z.offload_param.device == Offload::cpu) held += double(rank.parameters_elsewhere);
    return held;
  }

  void add(double saves, const std::string& what, const std::string& roughly) {
    if (saves >= 1) all_.push_back({saves, str(what, ": saves ", roughly, memory_text(int64_t(saves)))});
  }
  /// Adds a change of the configuration, unless it is not allowed. beside: further bytes that it saves. Returns the
  /// bytes of state after it.
  double try_config(const std::string& what, const std::function<void(Config&)>& change, double beside = 0) {
    Config other = config_;
    change(other);
    try {
      if (!reasons_against(other, run_.plan, {}, run_.optimizer.name()).empty()) return now_;
      const double then = bytes(other);
      add(now_ - then + beside, what, beside > 0 ? "up to " : "");
      return then;
    } catch (const Error&) { return now_; }  // NOLINT: resolve() does not accept this combination
  }

  void add_activations() {
    const double held = double(memory_report(run_.device).category[size_t(Memory::activation)].peak);
    const int64_t micro = *config_.train_micro_batch_size_per_gpu, steps = *config_.gradient_accumulation_steps;
    int64_t less = micro / 2;
    while (less > 1 && micro % less != 0) --less;
    if (less > 0)
      add(held * double(micro - less) / double(micro),
          str("train_micro_batch_size_per_gpu from ", micro, " to ", less, ", and gradient_accumulation_steps from ",
              steps, " to ", steps * (micro / less)),
          "about ");
    const bool is_cut = run_.plan.pp * run_.plan.tp > 1;
    const auto blocks = double(std::ranges::count(shape_.list, true, &ModelShape::Layer::repeats));
    const bool recomputes =
        config_.activation_checkpointing.enabled || config_.pipeline.activation_checkpoint_interval > 0;
    if (blocks > 1 && !recomputes)
      add(held * (1 - 1 / blocks),
          is_cut ? "pipeline.activation_checkpoint_interval from 0 to 1" : "activation_checkpointing.enabled",
          "up to ");
    if (parameter_dtype(config_) == f32)
      try_config(
          "bf16.enabled", [](Config& c) { c.bf16.enabled = true; }, held / 2);
  }

  void add_state() {
    double least = now_;
    const int64_t stage = config_.zero_optimization.stage;
    for (int64_t higher = stage + 1; higher <= 3; ++higher) {
      const auto change = [&](Config& c) { c.zero_optimization.stage = higher; };
      const size_t count = all_.size();
      const double then = try_config(str("zero_optimization.stage from ", stage, " to ", higher), change);
      if (then >= least) all_.erase(all_.begin() + ptrdiff_t(count), all_.end());  // no better than the stage below
      least = std::min(least, then);
    }
  }

  void add_offload() {
    const ZeroConfig& z = config_.zero_optimization;
    for (const Offload to : {Offload::cpu, Offload::nvme}) {
      const std::string device = std::string(name_of(to)) + (to == Offload::nvme ? ", with nvme_path" : "");
      if (z.offload_optimizer.device < to)
        try_config("zero_optimization.offload_optimizer.device " + device, [&](Config& c) {
          c.zero_optimization.offload_optimizer.device = to;
          c.zero_optimization.offload_optimizer.nvme_path = ".";
        });
      if (z.offload_param.device < to || z.stage < 3)
        try_config(str(z.stage < 3 ? "zero_optimization.stage 3 and " : "zero_optimization.", "offload_param.device ",
                       device, to == Offload::nvme ? " and max_in_cpu 0" : ""),
                   [&](Config& c) {
                     c.zero_optimization.stage = 3;
                     c.zero_optimization.offload_param.device = to;
                     c.zero_optimization.offload_param.nvme_path = ".";
                     c.zero_optimization.offload_param.max_in_cpu = 0;
                   });
    }
  }

  const OutOfMemoryRun& run_;
  Config config_;
  ModelShape shape_;
  bool computes_here_;
  double now_ = 0;
  std::vector<Change> all_;
};

std::string advise(const OutOfMemoryRun& run) {
  const std::string lines = Changes(run).text();
  if (lines.empty()) return "";
  return "To need less memory, change the configuration; on a rank:\n" + lines +
         "`lockstep plan` shows what a configuration needs.";
}

}  // namespace

std::vector<MemoryAdviser> forecast_memory_advice() { return {advise}; }

}  // namespace lockstep::engine
