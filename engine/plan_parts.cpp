#include "engine/plan_parts.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "pipeline/simulate.h"
#include "pipeline/split.h"
#include "tensor/check.h"

namespace lockstep::engine {

namespace {

/// Forwards that a step takes the time of: a backward takes two, and one more where activations are computed again.
double passes(const Config& c) {
  return c.activation_checkpointing.enabled || c.pipeline.activation_checkpoint_interval > 0 ? 4 : 3;
}

}  // namespace

PlanForecast plan_parts(const Config& asked, const ModelShape& model, const parallel::Plan& plan) {
  PlanForecast p{.plan = plan, .config = asked, .model = model};
  Config& c = p.config;
  LOCKSTEP_CHECK(plan.ep == 1 || model.experts > 0, "[plan] ", to_string(plan),
                 " shares experts, and the model has none; add --experts N, or leave ep", plan.ep, " out");
  LOCKSTEP_CHECK(!c.has("pipeline.stages") || c.pipeline.stages == plan.pp, "[plan] ", to_string(plan), " contradicts ",
                 c.origin, ", where pipeline.stages is ", c.pipeline.stages);
  LOCKSTEP_CHECK(plan.zero < 0 || !c.has("zero_optimization.stage") || c.zero_optimization.stage == plan.zero,
                 "[plan] ", to_string(plan), " contradicts ", c.origin, ", where zero_optimization.stage is ",
                 c.zero_optimization.stage);
  c.pipeline.stages = plan.pp;
  if (plan.zero >= 0) c.zero_optimization.stage = plan.zero;
  if (c.zero_optimization.stage > 0) p.plan.zero = int(c.zero_optimization.stage);
  const pipeline::Schedule schedule = [&] {
    const Config sized = resolve(c, plan.dp);
    check_plan(p.plan, {.ranks = plan.ranks(),
                        .layers = int64_t(model.list.size()),
                        .chunks = std::max<int64_t>(1, c.pipeline.chunks),
                        .heads = model.heads,
                        .width = model.width,
                        .inner = 4 * model.width,
                        .vocab = model.vocab,
                        .context = model.context,
                        .context_parts = 2,
                        .experts = model.experts});
    return pipeline::make_schedule({pipeline::parse_kind(c.pipeline.schedule), plan.pp,
                                    int(*sized.gradient_accumulation_steps), int(c.pipeline.chunks)});
  }();
  std::vector<double> weights;
  std::vector<std::string> kinds;
  std::map<size_t, std::set<int>> users;  // of parameters: layers
  for (size_t i = 0; i < model.list.size(); ++i) {
    double n = 0;
    for (const size_t one : model.list[i].parameters) {
      const bool again = users.count(one) > 0;
      users[one].insert(int(i));
      if (!again && model.parameters[one].expert < model.experts / plan.ep) n += double(model.parameters[one].numel());
    }
    weights.push_back(n);
    kinds.push_back(model.list[i].kind);
  }
  p.bounds =
      pipeline::balance(pipeline::weights_of(pipeline::SplitBy::parse(c.pipeline.partition), kinds, weights), schedule);

  const int m = schedule.request.micro_batches, last = schedule.virtual_stages() - 1;
  std::vector<double> flops(size_t(last) + 1);  // of each virtual stage
  for (int rank = 0; rank < plan.pp; ++rank) {
    ModelShape part = model;
    part.parameters.clear();
    part.list.clear();
    part.layers = 0;
    p.flops.push_back(0);
    // Elements of a token: handed on, whose gradients go back, added up by tensor-parallel ranks; layers with experts.
    double activations = 0, gradients = 0, reduces = 0, exchanges = 0;
    std::set<size_t> has;
    for (int chunk = 0; chunk < schedule.request.chunks; ++chunk) {
      const int stage = schedule.virtual_stage(rank, chunk);
      double& work = flops[size_t(stage)];
      for (int i = p.bounds[size_t(stage)]; i < p.bounds[size_t(stage) + 1]; ++i) {
        const ModelShape::Layer& layer = model.list[size_t(i)];
        for (const size_t one : layer.parameters) {
          if (model.parameters[one].expert < model.experts / plan.ep && has.insert(one).second)
            part.parameters.push_back(model.parameters[one].sliced(plan.tp));
        }
        work += model.flops(layer, plan.tp);
        part.layers += layer.beside > 0;
        exchanges += layer.has_experts;
        reduces += (layer.reduces + layer.reduces_back) * layer.out;
      }
      p.flops.back() += work;
      const auto out = [&](int of) { return model.list[size_t(p.bounds[size_t(of) + 1]) - 1].out; };
      if (stage < last && schedule.place(stage + 1).rank != rank) activations += out(stage);
      if (stage > 0 && schedule.place(stage - 1).rank != rank) gradients += out(stage - 1);
    }
    p.stages.push_back(engine::plan(c, part, plan.dp * plan.cp, plan.cp, plan.ep));
    const Forecast& own = p.stages.back();
    const double tokens = double(*own.config.train_micro_batch_size_per_gpu) * double(model.context) / plan.cp,
                 element = tokens * double(size_of(own.parameter_dtype)), bytes = element * double(model.width);
    double between = (activations + gradients) * element * m;
    for (const auto& [one, layers] :
         users) {  // gradients of what several layers use go from the last stage that has one to the first
      std::set<int> stages;
      for (const int layer : layers)
        stages.insert(int(std::upper_bound(p.bounds.begin(), p.bounds.end(), layer) - p.bounds.begin()) - 1);
      for (auto stage = stages.begin(); stage != stages.end() && std::next(stage) != stages.end(); ++stage) {
        const int to = schedule.place(*stage).rank, from = schedule.place(*std::next(stage)).rank;
        if (from == rank && to != rank)
          between += m * double(model.parameters[one].sliced(plan.tp).numel()) * double(size_of(own.parameter_dtype));
      }
    }
    p.stage_traffic.push_back(between);
    const double others = double(plan.tp - 1) / plan.tp;
    p.slice_traffic.push_back(plan.tp == 1
                                  ? 0
                                  : m * (reduces * 2 * others * element +
                                         (rank == schedule.place(last).rank ? 2 * tokens * 4 * (plan.tp - 1) : 0)));
    // Keys and values go round in a forward, in each again that activations are recomputed in, and in the backward,
    // with their gradients in 32 bits or more.
    const double rounds = passes(c) - 1, keys = 2 * bytes / plan.tp,
                 wide = std::max(4., double(size_of(own.parameter_dtype))) / double(size_of(own.parameter_dtype));
    p.context_traffic.push_back(
        plan.cp == 1 ? 0 : m * double(part.layers) * keys * (rounds * (plan.cp - 1) + plan.cp * wide));
    // Rows go to their experts and back, in the backward too, and how many come is said before (docs/moe.md).
    const double forwards = rounds - 1, away = double(plan.ep - 1) / plan.ep;
    p.expert_traffic.push_back(m * exchanges * away *
                               (rounds * 2 * bytes * double(model.top_k) + forwards * 8 * double(model.experts)));
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

bool overlaps(const PlanForecast& p) {
  return p.plan.pp == 1 && p.config.zero_optimization.overlap_comm.value_or(true);
}

PredictedTime predict(const PlanForecast& p, const Speeds& speeds) {
  PredictedTime t;
  const Config& c = p.config;
  const double tokens = double(*c.train_batch_size) * double(p.model.context), own = tokens / (p.plan.dp * p.plan.cp);
  double even = 0, copies = 0;  // compute of a rank, were stages equal; communication of the replicas
  for (size_t s = 0; s < p.stages.size(); ++s) {
    const Forecast& stage = p.stages[s];
    const double compute = passes(c) * p.flops[s] * own / speeds.flops;
    t.compute = std::max(t.compute, compute), even += compute / double(p.stages.size());
    copies = std::max(copies, p.copy_traffic(s) / speeds.bandwidth);
    t.communication = std::max(t.communication,
                               (p.copy_traffic(s) + p.slice_traffic[s] + p.context_traffic[s] + p.expert_traffic[s]) /
                                   speeds.bandwidth);  // what goes between stages goes beside
    double state = 0;                                  // is read and written, parameters written, gradients read
    for (const RankBytes& b : stage.bytes) state = std::max(state, 2 * double(b.optimizer + b.optimizer_elsewhere));
    const double updated = double(stage.model.numel()) / (c.zero_optimization.stage == 0 ? 1 : stage.ranks),
                 width = double(size_of(stage.parameter_dtype) + size_of(stage.gradient_dtype));
    t.optimizer = std::max(t.optimizer, (state + updated * width) / speeds.memory);
  }
  const double computing = even / (1 - p.bubble);
  t.step = (overlaps(p) ? std::max(computing, copies) + t.communication - copies : computing + t.communication) +
           t.optimizer;
  t.tokens = tokens / t.step;
  return t;
}

}  // namespace lockstep::engine
