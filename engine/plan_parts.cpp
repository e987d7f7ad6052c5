#include "engine/plan_parts.h"

#include <algorithm>
#include <numeric>

#include "dist/shard.h"
#include "pipeline/gpt.h"
#include "pipeline/simulate.h"
#include "pipeline/split.h"
#include "tensor/check.h"

namespace lockstep::engine {

namespace {

/// The parameters of each layer, as gpt cuts them; of a tied head none of its own.
std::vector<std::vector<ModelShape::Parameter>> layers_of(const ModelShape& model) {
  std::vector<std::vector<ModelShape::Parameter>> layers(size_t(pipeline::gpt_layer_count(model.layers)));
  for (const ModelShape::Parameter& p : model.parameters) {
    size_t at = layers.size() - 1;  // head
    if (p.name.starts_with("tokens")) at = 0;
    else if (p.name.starts_with("positions")) at = 1;
    else if (const int64_t half = half_block_of(p.name); half >= 0) at = 2 + size_t(half);
    else if (p.name.starts_with("norm")) at = layers.size() - 2;
    layers[at].push_back(p);
  }
  return layers;
}

/// What the first of `tp` slices has of it.
ModelShape::Parameter sliced(ModelShape::Parameter p, int tp) {
  const auto has = [&](const char* part) { return p.name.find(part) != p.name.npos; };
  const auto cut = [&](size_t dim) { p.shape[int(dim)] = dist::shard_range(p.shape[int(dim)], tp, 0).size(); };
  if (has("in_proj") || has("mlp.up")) cut(0);
  else if (p.name == "tokens.weight" || p.name == "head") cut(0);
  else if (has("out_proj.weight") || has("mlp.down.weight")) cut(1);
  return p;
}

/// Forwards that a step takes the time of: a backward takes two, and one more where activations are computed again.
double passes(const Config& c) { return c.pipeline.activation_checkpoint_interval > 0 ? 4 : 3; }

}  // namespace

PartsPlan plan_parts(const Config& asked, const ModelShape& model, int64_t heads, const parallel::Plan& plan) {
  PartsPlan p{.plan = plan, .config = asked, .model = model};
  Config& c = p.config;
  LOCKSTEP_CHECK(plan.ep == 1 || model.experts > 0, "[plan] ", to_string(plan), " shares experts, and the model has none; add --experts N, or leave ep", plan.ep, " out");
  LOCKSTEP_CHECK(!c.has("pipeline.stages") || c.pipeline.stages == plan.pp, "[plan] ", to_string(plan), " contradicts ", c.origin, ", where pipeline.stages is ", c.pipeline.stages);
  LOCKSTEP_CHECK(plan.zero < 0 || !c.has("zero_optimization.stage") || c.zero_optimization.stage == plan.zero, "[plan] ", to_string(plan), " contradicts ", c.origin, ", where zero_optimization.stage is ",
                 c.zero_optimization.stage);
  c.pipeline.stages = plan.pp;
  if (plan.zero >= 0) c.zero_optimization.stage = plan.zero;
  if (c.zero_optimization.stage > 0) p.plan.zero = int(c.zero_optimization.stage);
  const pipeline::Schedule schedule = [&] {
    const Config sized = resolve(c, plan.dp);
    check_plan(p.plan, {.ranks = plan.ranks(), .layers = pipeline::gpt_layer_count(model.layers), .chunks = std::max<int64_t>(1, c.pipeline.chunks), .heads = heads, .width = model.width, .inner = 4 * model.width, .vocab = model.vocab,
        .context = model.context, .context_parts = 2, .experts = model.experts});
    return pipeline::make_schedule({pipeline::parse_kind(c.pipeline.schedule), plan.pp, int(*sized.gradient_accumulation_steps), int(c.pipeline.chunks)});
  }();
  const auto layers = layers_of(model);
  const bool tied = layers.back().empty();
  std::vector<double> weights;
  std::vector<std::string> kinds;
  for (size_t i = 0; i < layers.size(); ++i) {
    double n = 0;
    for (const auto& one : layers[i]) if (one.expert < model.experts / plan.ep) n += double(one.numel());
    weights.push_back(n);
    kinds.push_back(i == 0 ? "Embedding" : i == 1 ? "Positions" : i + 2 < layers.size() ? i % 2 == 0 ? "TransformerBlock.attention" : "TransformerBlock.mlp" : i + 1 < layers.size() ? "LayerNorm" : "Head");
  }
  p.bounds = pipeline::balance(pipeline::weights_of(pipeline::SplitBy::parse(c.pipeline.partition), kinds, weights), schedule);

  const int m = schedule.request.micro_batches, last = schedule.virtual_stages() - 1;
  std::vector<double> flops(size_t(last) + 1);  // of each virtual stage
  for (int rank = 0; rank < plan.pp; ++rank) {
    ModelShape part = model;
    part.parameters.clear();
    part.layers = 0;
    p.flops.push_back(0);
    double activations = 0, gradients = 0, reduces = 0, exchanges = 0;
    for (int chunk = 0; chunk < schedule.request.chunks; ++chunk) {
      const int stage = schedule.virtual_stage(rank, chunk);
      double& work = flops[size_t(stage)];
      for (int i = p.bounds[size_t(stage)]; i < p.bounds[size_t(stage) + 1]; ++i) {
        for (const auto& one : layers[size_t(i)]) if (one.expert < model.experts / plan.ep) part.parameters.push_back(sliced(one, plan.tp));
        const bool attention = kinds[size_t(i)] == "TransformerBlock.attention", block = attention || kinds[size_t(i)] == "TransformerBlock.mlp", head = kinds[size_t(i)] == "Head";
        if (attention) ++part.layers, work += 2 * double(model.context) * double(model.width) / plan.tp;
        if (block) for (const auto& one : layers[size_t(i)]) work += 2 * model.products(sliced(one, plan.tp));
        if (block) exchanges += layers[size_t(i)].back().expert >= 0;
        if (head) work += 2 * double(model.vocab) * double(model.width) / plan.tp;
        if (head && tied && stage > 0 && std::none_of(part.parameters.begin(), part.parameters.end(), [](const auto& one) { return one.name == "tokens.weight"; })) {
          part.parameters.push_back(sliced(layers[0][0], plan.tp));
        }
        reduces += block ? 2 : i == 0 || head ? 1 : 0;  // forward and backward of half a block; the lookup; the head's input
      }
      p.flops.back() += work;
      if (stage < last && schedule.place(stage + 1).rank != rank) ++activations;
      if (stage > 0 && schedule.place(stage - 1).rank != rank) ++gradients;
    }
    p.stages.push_back(engine::plan(c, part, plan.dp * plan.cp, plan.cp, plan.ep));
    const Plan& own = p.stages.back();
    const double tokens = double(*own.config.train_micro_batch_size_per_gpu) * double(model.context) / plan.cp, bytes = tokens * double(model.width) * double(size_of(own.parameter_dtype));
    double between = (activations + gradients) * bytes * m;
    if (tied && rank == schedule.place(last).rank && rank != schedule.place(0).rank) between += m * double(sliced(layers[0][0], plan.tp).numel()) * double(size_of(own.parameter_dtype));
    p.stage_traffic.push_back(between);
    const double others = double(plan.tp - 1) / plan.tp;
    p.slice_traffic.push_back(plan.tp == 1 ? 0 : m * (reduces * 2 * others * bytes + (rank == schedule.place(last).rank ? 2 * tokens * 4 * (plan.tp - 1) : 0)));
    // Keys and values go round in a forward, in each again that activations are recomputed in, and in the backward, with their gradients in 32 bits or more.
    const double rounds = passes(c) - 1, keys = 2 * bytes / plan.tp, wide = std::max(4., double(size_of(own.parameter_dtype))) / double(size_of(own.parameter_dtype));
    p.context_traffic.push_back(plan.cp == 1 ? 0 : m * double(part.layers) * keys * (rounds * (plan.cp - 1) + plan.cp * wide));
    // Rows go to their experts and back, in the backward too, and how many come is said before (docs/moe.md).
    const double forwards = rounds - 1, away = double(plan.ep - 1) / plan.ep;
    p.expert_traffic.push_back(m * exchanges * away * (rounds * 2 * bytes * double(model.top_k) + forwards * 8 * double(model.experts)));
  }
  c = p.stages[0].config;
  if (plan.pp == 1) return p;
  pipeline::Costs costs{.input = passes(c) - 2};
  p.formula = pipeline::formula(schedule.request, costs).bubble;
  const double even = std::accumulate(flops.begin(), flops.end(), 0.) / double(flops.size());
  for (const double f : flops) costs.weights.push_back(f / even);
  p.bubble = pipeline::simulate(schedule, costs).bubble;
  return p;
}

PredictedTime predict(const PartsPlan& p, const Speeds& speeds) {
  PredictedTime t;
  const Config& c = p.config;
  const double tokens = double(*c.train_batch_size) * double(p.model.context), own = tokens / (p.plan.dp * p.plan.cp);
  double even = 0;  // compute of a rank, were stages equal
  for (size_t s = 0; s < p.stages.size(); ++s) {
    const double compute = passes(c) * p.flops[s] * own / speeds.flops;
    t.compute = std::max(t.compute, compute), even += compute / double(p.stages.size());
    t.communication = std::max(t.communication, (p.copy_traffic(s) + p.slice_traffic[s] + p.context_traffic[s] + p.expert_traffic[s]) / speeds.bandwidth);  // what goes between stages goes beside
    double state = 0;
    for (const RankBytes& b : p.stages[s].bytes) state = std::max(state, 2 * double(b.optimizer + b.optimizer_elsewhere));
    t.optimizer = std::max(t.optimizer, state / speeds.memory);
  }
  t.step = even / (1 - p.bubble) + t.communication + t.optimizer;
  t.tokens = tokens / t.step;
  return t;
}

}  // namespace lockstep::engine
