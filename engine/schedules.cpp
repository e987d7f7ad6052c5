// Schedules of the learning rate by DeepSpeed's and PyTorch's names.
#include "engine/params.h"
#include "optim/optim.h"

namespace lockstep::engine {

using data::Json;
using optim::Schedule;

namespace {

struct ScheduleType {
  std::string name, doc;
  std::function<std::vector<ParamInfo>(const Json& params, std::vector<std::string>& problems,
                                       std::vector<std::string>& warnings)>
      check;
  std::function<std::unique_ptr<Schedule>(const NamedConfig& config, optim::Optimizer& optimizer)> make;
};

/// An optimizer of nothing, on which a schedule is tried before there is a model.
std::unique_ptr<optim::Optimizer> trial_optimizer(int groups) {
  std::vector<optim::AdamW::Group> all;
  for (int g = 0; g < groups; ++g) all.push_back({{Variable(zeros({1}), true)}, {}});
  return std::make_unique<optim::AdamW>(all);
}

/// The longest list in the params: as many groups as they speak of.
int groups_of(const Json& params) {
  int groups = 1;
  for (const auto& [name, value] : params.as_object())
    if (value.is_array() && name != "milestones")
      groups = std::max(groups, int(std::min<size_t>(value.as_array().size(), 1000)));
  return groups;
}

template <class Class>
ScheduleType type_of(const char* name, const char* doc, std::vector<ParamRow<typename Class::Options>> rows,
                     const std::vector<std::string>& no_effect = {}) {
  using O = typename Class::Options;
  for (const std::string& same : no_effect)
    rows.push_back(without_effect<O>(same.c_str(), Json(), "DeepSpeed does not use it either"));
  rows.push_back(without_effect<O>("last_batch_iteration", -1, "a loaded checkpoint says where the schedule is"));
  const auto make = [=](const NamedConfig& config, optim::Optimizer& optimizer) -> std::unique_ptr<Schedule> {
    O options{};
    std::vector<std::string> problems, warnings;
    read_params<O>("scheduler.params", name, rows, config.params, options, problems, warnings);
    fail_if_any("scheduler", problems);
    return std::make_unique<Class>(optimizer, std::move(options));
  };
  return {name, doc,
          [=](const Json& params, std::vector<std::string>& problems, std::vector<std::string>& warnings) {
            O options{};
            const size_t before = problems.size();
            auto all = read_params<O>("scheduler.params", name, rows, params, options, problems, warnings);
            if (problems.size() > before) return all;
            try {  // what the options must be together, the schedule itself knows
              const auto optimizer = trial_optimizer(groups_of(params));
              Class(*optimizer, options);
            } catch (const Error& error) {
              const std::string text = error.what();
              problems.push_back("scheduler.params: " +
                                 text.substr(text.find("] ") == text.npos ? 0 : text.find("] ") + 2));
            }
            if constexpr (requires {
                            options.total_num_steps;
                            options.warmup_num_steps;
                          }) {
              if (options.total_num_steps < options.warmup_num_steps)
                warnings.push_back(str("scheduler.params.total_num_steps: ", options.total_num_steps,
                                       " is less than warmup_num_steps ", options.warmup_num_steps));
            }
            return all;
          },
          make};
}

template <class O> std::vector<ParamRow<O>> warmup_rows() {
  return {row<O>("warmup_min_lr", &O::warmup_min_lr, least(0)), row<O>("warmup_max_lr", &O::warmup_max_lr, least(0)),
          row<O>("warmup_num_steps", &O::warmup_num_steps, least(0)), row<O>("warmup_type", &O::warmup_type)};
}

const std::vector<ScheduleType>& all_types() {
  using namespace optim;
  static const std::vector<ScheduleType> types = [] {
    std::vector<ScheduleType> all;
    {
      using O = WarmupLR::Options;
      all.push_back(type_of<WarmupLR>(
          "WarmupLR", "up from warmup_min_lr to warmup_max_lr (null: the optimizer's lr), then constant",
          warmup_rows<O>()));
    }
    {
      using O = WarmupDecayLR::Options;
      auto rows = warmup_rows<O>();
      rows.insert(rows.begin(), required<O>("total_num_steps", &O::total_num_steps, least(1)));
      all.push_back(
          type_of<WarmupDecayLR>("WarmupDecayLR", "the same, then straight down to 0 at total_num_steps", rows));
    }
    {
      using O = WarmupCosineLR::Options;
      all.push_back(type_of<WarmupCosineLR>(
          "WarmupCosineLR", "ratios of the optimizer's lr: up, then down a cosine to cos_min_ratio at total_num_steps",
          {required<O>("total_num_steps", &O::total_num_steps, least(1)),
           row<O>("warmup_min_ratio", &O::warmup_min_ratio, between(0, 1)),
           row<O>("warmup_num_steps", &O::warmup_num_steps, least(0)),
           row<O>("cos_min_ratio", &O::cos_min_ratio, between(0, 1)), row<O>("warmup_type", &O::warmup_type)}));
    }
    {
      using O = LRRangeTest::Options;
      all.push_back(type_of<LRRangeTest>("LRRangeTest", "grows, to find a good rate",
                                         {row<O>("lr_range_test_min_lr", &O::lr_range_test_min_lr, positive()),
                                          row<O>("lr_range_test_step_size", &O::lr_range_test_step_size, least(1)),
                                          row<O>("lr_range_test_step_rate", &O::lr_range_test_step_rate, least(0)),
                                          row<O>("lr_range_test_staircase", &O::lr_range_test_staircase)}));
    }
    {
      using O = OneCycle::Options;
      all.push_back(type_of<OneCycle>(
          "OneCycle", "up, down, then decay; momentum goes the other way",
          {required<O>("cycle_min_lr", &O::cycle_min_lr, least(0)),
           required<O>("cycle_max_lr", &O::cycle_max_lr, least(0)),
           row<O>("decay_lr_rate", &O::decay_lr_rate, least(0)),
           row<O>("cycle_first_step_size", &O::cycle_first_step_size, least(1)),
           row<O>("cycle_second_step_size", &O::cycle_second_step_size, least(1)),
           row<O>("decay_step_size", &O::decay_step_size, least(0)), row<O>("cycle_momentum", &O::cycle_momentum),
           row<O>("cycle_min_mom", &O::cycle_min_mom, between(0, 1)),
           row<O>("cycle_max_mom", &O::cycle_max_mom, between(0, 1)),
           row<O>("decay_mom_rate", &O::decay_mom_rate, least(0))},
          {"cycle_first_stair_count", "cycle_second_stair_count"}));
    }
    {
      using O = StepLR::Options;
      all.push_back(type_of<StepLR>("StepLR", "lr * gamma ^ floor(step / step_size)",
                                    {required<O>("step_size", &O::step_size, least(1)), row<O>("gamma", &O::gamma)}));
    }
    {
      using O = MultiStepLR::Options;
      all.push_back(
          type_of<MultiStepLR>("MultiStepLR", "lr * gamma ^ (milestones passed)",
                               {required<O>("milestones", &O::milestones, least(0)), row<O>("gamma", &O::gamma)}));
    }
    {
      using O = ExponentialLR::Options;
      all.push_back(type_of<ExponentialLR>("ExponentialLR", "lr * gamma ^ step", {required<O>("gamma", &O::gamma)}));
    }
    {
      using O = CosineAnnealingLR::Options;
      all.push_back(type_of<CosineAnnealingLR>(
          "CosineAnnealingLR", "a cosine from lr to eta_min over T_max steps",
          {required<O>("T_max", &O::T_max, least(1)), row<O>("eta_min", &O::eta_min, least(0))}));
    }
    {
      using O = CosineAnnealingWarmRestarts::Options;
      all.push_back(type_of<CosineAnnealingWarmRestarts>(
          "CosineAnnealingWarmRestarts", "the same over T_0 steps, again over T_0 T_mult, ...",
          {required<O>("T_0", &O::T_0, least(1)), row<O>("T_mult", &O::T_mult, least(1)),
           row<O>("eta_min", &O::eta_min, least(0))}));
    }
    {
      using O = LinearLR::Options;
      all.push_back(type_of<LinearLR>("LinearLR", "a factor that goes from start_factor to end_factor",
                                      {row<O>("start_factor", &O::start_factor), row<O>("end_factor", &O::end_factor),
                                       row<O>("total_iters", &O::total_iters, least(1))}));
    }
    {
      using O = ConstantLR::Options;
      all.push_back(
          type_of<ConstantLR>("ConstantLR", "lr * factor until total_iters, then lr",
                              {row<O>("factor", &O::factor), row<O>("total_iters", &O::total_iters, least(1))}));
    }
    {
      using O = PolynomialLR::Options;
      all.push_back(
          type_of<PolynomialLR>("PolynomialLR", "lr * (1 - step / total_iters) ^ power",
                                {row<O>("total_iters", &O::total_iters, least(1)), row<O>("power", &O::power)}));
    }
    {
      using O = OneCycleLR::Options;
      all.push_back(type_of<OneCycleLR>(
          "OneCycleLR", "PyTorch's: up to max_lr, down far below the start",
          {required<O>("max_lr", &O::max_lr, least(0)), required<O>("total_steps", &O::total_steps, least(1)),
           row<O>("pct_start", &O::pct_start, between(0, 1)),
           row<O>("anneal_strategy", &O::anneal_strategy, words({"cos", "linear"})),
           row<O>("cycle_momentum", &O::cycle_momentum), row<O>("base_momentum", &O::base_momentum, between(0, 1)),
           row<O>("max_momentum", &O::max_momentum, between(0, 1)), row<O>("div_factor", &O::div_factor, positive()),
           row<O>("final_div_factor", &O::final_div_factor, positive()), row<O>("three_phase", &O::three_phase)}));
    }
    {
      using O = ReduceLROnPlateau::Options;
      all.push_back(type_of<ReduceLROnPlateau>(
          "ReduceLROnPlateau",
          "cut by factor when the metric given to the engine's step() has not improved for patience steps",
          {row<O>("mode", &O::mode, words({"min", "max"})), row<O>("factor", &O::factor),
           row<O>("patience", &O::patience, least(0)), row<O>("threshold", &O::threshold),
           row<O>("threshold_mode", &O::threshold_mode, words({"rel", "abs"})),
           row<O>("cooldown", &O::cooldown, least(0)), row<O>("min_lr", &O::min_lr, least(0)),
           row<O>("eps", &O::eps, least(0))}));
    }
    return all;
  }();
  return types;
}

}  // namespace

std::vector<TypeInfo> schedule_types() {
  std::vector<TypeInfo> all;
  for (const ScheduleType& type : all_types()) {
    std::vector<std::string> problems, warnings;
    all.push_back({type.name, type.doc, type.check(Json::Object(), problems, warnings)});
  }
  return all;
}

std::vector<ParamInfo> check_schedule(const NamedConfig& config, std::vector<std::string>& problems,
                                      std::vector<std::string>& warnings) {
  if (const ScheduleType* type = find_type(all_types(), config.type))
    return type->check(config.params, problems, warnings);
  problems.push_back(unknown_type(all_types(), "scheduler.type", config.type));
  return {};
}

std::unique_ptr<Schedule> make_schedule(const Config& config, optim::Optimizer& optimizer) {
  if (config.scheduler.type.empty()) return nullptr;
  const ScheduleType* type = find_type(all_types(), config.scheduler.type);
  LOCKSTEP_CHECK(type, unknown_type(all_types(), "scheduler.type", config.scheduler.type));
  return type->make(config.scheduler, optimizer);
}

std::vector<TypeInfo> types_of(Kind kind) { return kind == Kind::optimizer ? optimizer_types() : schedule_types(); }

std::vector<ParamInfo> check_params(Kind kind, const NamedConfig& config, std::vector<std::string>& problems,
                                    std::vector<std::string>& warnings) {
  if (config.type.empty()) return {};
  return kind == Kind::optimizer ? check_optimizer(config, problems, warnings)
                                 : check_schedule(config, problems, warnings);
}

}  // namespace lockstep::engine
