// Learning rate schedules by DeepSpeed's and PyTorch's names.
#include <algorithm>

#include "base/check.h"
#include "engine/params.h"
#include "optim/optim.h"
#include "optim/schedule.h"
#include "tensor/ops.h"

namespace lockstep::engine {

namespace {

template <class O> void name_warmup(Params& p, O& o) {
  p("warmup_min_lr", &o.warmup_min_lr, least(0))("warmup_max_lr", &o.warmup_max_lr, least(0));
  p("warmup_num_steps", &o.warmup_num_steps, least(0))("warmup_type", &o.warmup_type);
}

/// Adds a warning if the warm-up is longer than the run.
template <class O> void warn_if_short(Params& p, const O& o) {
  if (p.problems.empty() && o.total_num_steps < o.warmup_num_steps)
    p.warnings.push_back(str("scheduler.params.total_num_steps: ", o.total_num_steps, " is less than warmup_num_steps ",
                             o.warmup_num_steps));
}

}  // namespace

std::unique_ptr<optim::Optimizer> trial_optimizer(const data::Json& params) {
  size_t groups = 1;
  for (const auto& [name, value] : params.as_object())
    if (value.is_array() && name != "milestones")
      groups = std::max(groups, std::min<size_t>(value.as_array().size(), 1000));
  std::vector<optim::AdamW::Group> all;
  for (size_t g = 0; g < groups; ++g) all.push_back({{Variable(zeros({1}), true)}, {}});
  return std::make_unique<optim::AdamW>(all);
}

const std::vector<NamedType>& schedule_types() {
  static const std::vector<NamedType> types = [] {
    std::vector<NamedType> all = {
        schedule_type<optim::WarmupLR>(
            "WarmupLR", "up from warmup_min_lr to warmup_max_lr (null: the optimizer's lr), then constant",
            [](Params& p, auto& o) { name_warmup(p, o); }),
        schedule_type<optim::WarmupDecayLR>("WarmupDecayLR", "the same, then straight down to 0 at total_num_steps",
                                            [](Params& p, auto& o) {
                                              p.required("total_num_steps", &o.total_num_steps, least(1));
                                              name_warmup(p, o);
                                              warn_if_short(p, o);
                                            }),
        schedule_type<optim::WarmupCosineLR>(
            "WarmupCosineLR",
            "ratios of the optimizer's lr: up, then down a cosine to cos_min_ratio at total_num_steps",
            [](Params& p, auto& o) {
              p.required("total_num_steps", &o.total_num_steps, least(1));
              p("warmup_min_ratio", &o.warmup_min_ratio, between(0, 1));
              p("warmup_num_steps", &o.warmup_num_steps, least(0));
              p("cos_min_ratio", &o.cos_min_ratio, between(0, 1))("warmup_type", &o.warmup_type);
              warn_if_short(p, o);
            }),
    };
    const auto& more = schedules_of_extensions();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return types;
}

std::unique_ptr<optim::Schedule> make_schedule(const Config& config, optim::Optimizer& optimizer) {
  if (config.scheduler.type.empty()) return nullptr;
  return std::get<MakeSchedule>(read_named(ParamsKind::schedule, config.scheduler))(optimizer);
}

}  // namespace lockstep::engine
