// Finds the reasons why a configuration cannot run under a plan. See check_plan.h.
#include "engine/check_plan.h"

#include <fmt/format.h>

#include "base/check.h"
#include "engine/params.h"
#include "engine/section.h"
#include "pipeline/schedule.h"

namespace lockstep::engine {

namespace {

/// The optimizer's name in messages.
std::string named(const Config& c, const std::string& optimizer) {
  return optimizer.empty() ? "optimizer.type: " + c.optimizer.type : optimizer;
}

/// True if the configured batch size can be divided among the plan's replicas.
bool batch_fits(const Config& c, const parallel::Plan& plan) {
  if (!c.has("train_batch_size")) return true;
  const bool micro = c.has("train_micro_batch_size_per_gpu"), accumulation = c.has("gradient_accumulation_steps");
  const int64_t parts =
      plan.dp * (micro ? *c.train_micro_batch_size_per_gpu : 1) * (accumulation ? *c.gradient_accumulation_steps : 1);
  return micro && accumulation ? *c.train_batch_size == parts : *c.train_batch_size % parts == 0;
}

}  // namespace

std::vector<std::string> optimizer_reasons(const Config& c, const parallel::Plan& plan, const std::string& optimizer) {
  const NamedType* const type = type_named(optimizer.empty() ? c.optimizer.type : optimizer);
  return type && type->reasons ? type->reasons(c, plan, named(c, optimizer)) : std::vector<std::string>();
}

std::vector<std::string> optimizer_warnings(const Config& c, const std::string& optimizer) {
  std::vector<std::string> warnings;
  const NamedType* const type = type_named(optimizer.empty() ? c.optimizer.type : optimizer);
  for (const std::string& key : type ? type->ignored : std::vector<std::string>())
    if (c.has(key)) warnings.push_back(str(key, ": ignored with ", named(c, optimizer), "; leave it out"));
  return warnings;
}

std::vector<std::string> reasons_against(const Config& c, const parallel::Plan& asked, const parallel::PlanSizes& sizes,
                                         const std::string& optimizer) {
  parallel::Plan plan = asked;
  plan.zero = std::max(plan.zero, int(c.zero_optimization.stage));
  const pipeline::PipelineRequest request{pipeline::parse_kind(c.pipeline.schedule), plan.pp,
                                          int(c.gradient_accumulation_steps.value_or(0)), int(c.pipeline.chunks)};
  parallel::PlanSizes cut = sizes;
  cut.chunks = pipeline::chunks_of(request);
  std::vector<std::string> reasons = parallel::reasons_against(plan, cut);
  for (std::string& reason : optimizer_reasons(c, plan, optimizer)) reasons.push_back(std::move(reason));
  const auto refuse = [&](bool holds, const std::string& reason) {
    if (holds) reasons.push_back(reason);
  };
  refuse(c.tensor_parallel.sequence_parallel && plan.tp == 1,
         "tensor_parallel.sequence_parallel needs tensor parallelism; add tpN to the plan");
  refuse(c.tensor_parallel.sequence_parallel && plan.cp > 1,
         str("tensor_parallel.sequence_parallel cannot be combined with cp", plan.cp,
             ", whose ranks share sequences already; leave it out"));
  refuse(
      c.tensor_parallel.sequence_parallel && sizes.experts > 0,
      "tensor_parallel.sequence_parallel cannot be combined with experts, which route the tokens of whole sequences; "
      "leave it out");
  refuse(c.has("tensor_parallel.overlap_chunks") && plan.tp == 1,
         "tensor_parallel.overlap_chunks needs tensor parallelism; add tpN to the plan");
  refuse(c.has("context_parallel.attention") && plan.cp == 1,
         "context_parallel.attention needs context parallelism; add cpN to the plan");
  for (const Section& section : sections())
    if (section.reasons)
      for (std::string& reason : section.reasons(c, plan)) reasons.push_back(std::move(reason));
  if (plan.pp > 1 && request.micro_batches > 0)
    if (const std::string refusal = pipeline::refusal_of(request); !refusal.empty())
      reasons.push_back("pipeline.schedule: " + refusal);
  if (plan.pp * plan.tp == 1) return reasons;
  refuse(!c.managed_gradient_accumulation,
         "managed_gradient_accumulation: false lets the caller decide when a step ends, but plans with pp or tp run "
         "whole steps; leave it out");
  refuse(c.data_types.grad_accum_dtype.has_value(),
         "data_types.grad_accum_dtype: plans with pp or tp sum micro-batches in the dtype of their parameters; "
         "communication_data_type sets the dtype of sums over replicas, so leave grad_accum_dtype out");
  return reasons;
}

void check_plan(const Config& c, const parallel::Plan& plan, const parallel::PlanSizes& sizes,
                const std::string& optimizer) {
  const std::vector<std::string> reasons = reasons_against(c, plan, sizes, optimizer);
  if (reasons.empty()) return;
  const auto near = parallel::nearest_plan(plan, sizes, [&](const parallel::Plan& other) {
    return batch_fits(c, other) && reasons_against(c, other, sizes, optimizer).empty();
  });
  fail(str("[plan] ", to_string(plan), " does not work with ", c.origin, ": ",
           fmt::format("{}", fmt::join(reasons, "; ")),
           near ? ". The nearest plan that works: " + to_string(*near)
                : ". No plan on these ranks works with this configuration; change the keys named"));
}

}  // namespace lockstep::engine
