// Finds the reasons why a configuration cannot run under a plan. See check_plan.h.
#include "engine/check_plan.h"

#include <fmt/format.h>

#include "base/check.h"
#include "engine/config_table.h"
#include "engine/params.h"
#include "pipeline/schedule.h"

namespace lockstep::engine {

bool is_one_bit(const std::string& optimizer) {
  const std::string name = lower(optimizer);
  return name.starts_with("onebit") || name == "zerooneadam";
}

namespace {

/// The optimizer's name in messages.
std::string named(const Config& c, const std::string& optimizer) {
  return optimizer.empty() ? "optimizer.type: " + c.optimizer.type : optimizer;
}

void add_one_bit_reasons(std::vector<std::string>& reasons, const Config& c, const parallel::Plan& plan,
                         const std::string& name) {
  const auto refuse = [&](bool holds, const std::string& what) {
    if (holds) reasons.push_back(str(name, " exchanges gradients itself and ", what, ", or use AdamW"));
  };
  const ZeroConfig& z = c.zero_optimization;
  const int64_t stage = std::max<int64_t>(plan.zero, z.stage);
  refuse(plan.pp * plan.tp > 1,
         str("needs the whole model on every rank, but ", to_string(plan), " cuts it; leave pp and tp out"));
  refuse(plan.ep > 1,
         str("averages gradients over all ranks, but with ep", plan.ep, " ranks hold different experts; leave ep out"));
  refuse(stage != 0, str("needs stage 0, but zero_optimization.stage is ", stage, "; leave zero_optimization out"));
  refuse(z.offload_optimizer.device != zero::Offload::none,
         str("keeps its state with the parameters, zero_optimization.offload_optimizer.device is ",
             name_of(z.offload_optimizer.device), "; leave it out"));
  refuse(c.ema.decay > 0,
         "has different parameters on every rank between exchanges, so ema.decay would average different values; leave "
         "ema out");
  refuse(z.ignore_unused_parameters && c.has("zero_optimization.ignore_unused_parameters"),
         "needs a gradient for every parameter, zero_optimization.ignore_unused_parameters is true; leave it out");
  for (const auto& [key, value] : {std::pair("communication_data_type", c.communication_data_type),
                                   std::pair("data_types.grad_accum_dtype", c.data_types.grad_accum_dtype)})
    refuse(value.has_value(), str("in the parameters' type, ", key, " is ", value.value_or(""), "; leave it out"));
}

/// Adds the reasons of the optimizer's type, and those against optimizers that update an element from other elements of
/// its block (8-bit state).
void add_state_reasons(std::vector<std::string>& reasons, const Config& c, const parallel::Plan& plan,
                       const std::string& name) {
  const std::string kind = lower(name.substr(name.rfind(' ') + 1));
  for (std::string& reason : reasons_of_type(kind, c, plan, name)) reasons.push_back(std::move(reason));
  if (!kind.ends_with("8bit")) return;
  const std::string wide = name.substr(name.rfind(' ') + 1, name.size() - name.rfind(' ') - 5);
  if (plan.tp > 1)
    reasons.push_back(str(name, " quantizes blocks of 256 elements of the whole parameter, and tp", plan.tp,
                          " cuts across them; leave tp out, or use ", wide));
  if (c.zero_optimization.offload_optimizer.device == zero::Offload::nvme)
    reasons.push_back(str(name, " keeps 8-bit state, but offload to nvme stores f32; offload to cpu, or use ", wide));
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
  std::vector<std::string> reasons;
  if (is_one_bit(optimizer.empty() ? c.optimizer.type : optimizer))
    add_one_bit_reasons(reasons, c, plan, named(c, optimizer));
  add_state_reasons(reasons, c, plan, named(c, optimizer));
  return reasons;
}

std::vector<std::string> one_bit_warnings(const Config& c, const std::string& optimizer) {
  std::vector<std::string> warnings;
  if (!is_one_bit(optimizer.empty() ? c.optimizer.type : optimizer)) return warnings;
  for (const char* key :
       {"zero_optimization.overlap_comm", "zero_optimization.reduce_bucket_size", "zero_optimization.reduce_scatter"})
    if (c.has(key)) warnings.push_back(str(key, ": ignored with ", named(c, optimizer)));
  return warnings;
}

std::vector<std::string> reasons_against(const Config& c, const parallel::Plan& asked, const parallel::PlanSizes& sizes,
                                         const std::string& optimizer) {
  parallel::Plan plan = asked;
  plan.zero = std::max(plan.zero, int(c.zero_optimization.stage));
  const pipeline::Request request{pipeline::parse_kind(c.pipeline.schedule), plan.pp,
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
  refuse(plan.cp > 1 && c.sparse_attention.is_object(),
         str("sparse_attention with cp", plan.cp, " is not supported; leave one of them out"));
  refuse(c.fp8.enabled && plan.ep > 1, str("fp8.enabled with ep", plan.ep,
                                           ": ranks with different experts would have to agree on their scales, which "
                                           "is not supported; leave ep out, or use bf16"));
  if (plan.pp > 1 && request.micro_batches > 0)
    if (const std::string refusal = pipeline::refusal_of(request); !refusal.empty())
      reasons.push_back("pipeline.schedule: " + refusal);
  if (plan.pp * plan.tp == 1) return reasons;
  refuse(!c.managed_gradient_accumulation,
         "managed_gradient_accumulation: false lets the caller decide when a step ends, but plans with pp or tp run "
         "whole steps; leave it out");
  refuse(c.activation_checkpointing.enabled,
         "activation_checkpointing.enabled: plans with pp or tp recompute layers by "
         "pipeline.activation_checkpoint_interval; set that instead");
  refuse(c.flops_profiler.enabled,
         "flops_profiler.enabled: the profiler follows one forward of a whole model; leave it out, or profile without "
         "pp and tp");
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
