// The section "fp8" of the configuration file, and the object by which an engine updates and saves the scales.
#include "extensions/fp8/section.h"

#include "engine/engine.h"
#include "engine/pipeline_module.h"
#include "engine/section.h"

namespace lockstep::engine {
namespace {

/// Updates the scales after each step, and saves them.
class Fp8Participant : public Participant {
 public:
  Fp8Participant(nn::Module& model, const nn::Fp8Options& options) : scaling_(model, options) {}
  std::string text() const override { return scaling_.text(); }
  void after_step(const std::function<void(const Tensor&)>& maximum) override { scaling_.update(maximum); }
  /// "optimizer.fp8_scale.NAME" and "optimizer.fp8_amax_history.NAME" of each Linear.
  std::vector<std::pair<std::string, Tensor>> state() const override {
    std::vector<std::pair<std::string, Tensor>> all;
    for (const nn::Fp8Scaling::Piece& piece : scaling_.state()) {
      all.emplace_back("optimizer.fp8_scale." + piece.name, piece.scale);
      all.emplace_back("optimizer.fp8_amax_history." + piece.name, piece.history);
    }
    return all;
  }
  std::string without_state() const override { return "was saved without fp8; nothing to do: its scales start at 1"; }
  std::string other_shape(const std::string&, const Shape& saved) const override {
    return str("set fp8.amax_history_len to ", saved[saved.rank() - 1]);
  }
  void loaded() override { scaling_.loaded(); }

 private:
  nn::Fp8Scaling scaling_;
};

bool is_on(const Config& config) { return config.section<Fp8Config>().enabled; }

void check(const Config& config, std::vector<std::string>& problems, std::vector<std::string>&) {
  if (is_on(config) && config.fp16.enabled)
    problems.push_back("fp16.enabled and fp8.enabled: fp8 needs bf16; disable one of them");
}

std::vector<std::string> reasons(const Config& config, const parallel::Plan& plan) {
  if (!is_on(config) || plan.ep <= 1) return {};
  return {str("fp8.enabled with ep", plan.ep,
              ": ranks with different experts would have to agree on their scales, which is not supported; leave ep "
              "out, or use bf16")};
}

std::string prepare(const Config& config, const InitializeArgs& args, PipelineModule& module) {
  if (!is_on(config)) return "";
  for (const auto& own : {args.autocast, module.autocast})
    LOCKSTEP_CHECK(own.value_or(bf16) == bf16,
                   "[initialize] fp8.enabled expects bf16 for everything else, got autocast in ", own.value_or(bf16),
                   "; leave one of them out");
  LOCKSTEP_CHECK(!module.forward,
                 "[initialize] fp8.enabled expects the model's own forward, got another one, whose replicas of the "
                 "model have no scales; use ranks instead of --parallel dp: lockstep run -n N, or --ranks N");
  if (!config.bf16.enabled) module.autocast = bf16;
  return "";
}

std::unique_ptr<Participant> start(const Config& config, const Trained& trained) {
  const Fp8Config& f = config.section<Fp8Config>();
  if (!f.enabled) return nullptr;
  using Amax = nn::Fp8Options::Amax;
  const nn::Fp8Options options{.hybrid = f.format == "hybrid",
                               .margin = f.margin,
                               .amax_history_len = f.amax_history_len,
                               .amax_compute_algo = f.amax_compute_algo == "max" ? Amax::max : Amax::most_recent};
  return std::make_unique<Fp8Participant>(trained.model, options);
}

}  // namespace

std::vector<Section> fp8_sections() {
  return {{.name = "fp8",
           .about = "8-bit floats in Linears",
           .page = "[fp8](../extensions/fp8/README.md)",
           .keys = {key<&Fp8Config::enabled>("fp8.enabled", any(),
                                             "Linears multiply in 8-bit floats with delayed scaling, all else is in "
                                             "bf16 (DeepSpeed has no such section)"),
                    key<&Fp8Config::format>("fp8.format", words({"hybrid", "e4m3"}),
                                            "hybrid: numbers of forward in e4m3, gradients in e5m2; e4m3: all in it"),
                    key<&Fp8Config::margin>("fp8.margin", between(0, 64),
                                            "scales leave this many powers of two below the largest number of the "
                                            "format"),
                    key<&Fp8Config::amax_history_len>("fp8.amax_history_len", between(1, 1e6),
                                                      "number of steps whose largest values determine a scale"),
                    key<&Fp8Config::amax_compute_algo>("fp8.amax_compute_algo", words({"max", "most_recent"}),
                                                       "which of those values: the largest, or that of the last step")},
           .check = check,
           .reasons = reasons,
           .prepare = prepare,
           .start = start,
           .saved = "optimizer.fp8_",
           .precisions = {{.word = "fp8", .help = "Linears in 8 bits", .keys = {"fp8.enabled"}}}}};
}

}  // namespace lockstep::engine
