// Predicts bytes, traffic and time of a configuration. See plan.h.
#include "extensions/forecast/plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "base/clock.h"
#include "engine/check_plan.h"
#include "engine/config_table.h"
#include "parallel/tensor_parallel/overlap.h"
#include "pipeline/simulate.h"
#include "pipeline/split.h"

namespace lockstep::engine {

namespace {

// --- memory of the optimizer's state, measured by a step on parameters of one element each ---

struct Asked {
  std::string name;
  std::vector<double> bytes;      ///< bytes of state per element
  std::vector<bool> elementwise;  ///< false: one rank owns the whole parameter
};

Asked ask_optimizer(Config config, const ModelShape& model, DType dtype) {
  if (config.optimizer.type.empty()) config.optimizer.type = "AdamW";
  Asked asked;
  const std::string type = lower(config.optimizer.type);
  const bool onebit = type.starts_with("onebit") || type == "zerooneadam";
  // A 1-bit optimizer keeps the state of its base optimizer plus two error tensors, which are added below.
  if (onebit) config.optimizer = {.type = type == "onebitsgd" ? "SGD" : type == "onebitlamb" ? "Lamb" : "AdamW"};
  if (type == "onebitsgd") config.optimizer.params["momentum"] = 0.9;
  NamedParameters tiny;
  std::map<const void*, size_t> places;
  const auto add = [&](const ModelShape::Parameter& p, size_t place) {
    const Tensor one = ones(p.shape.size() == 1 ? Shape{1} : Shape{1, 1}, {.dtype = dtype});
    tiny.push_back({p.name, Variable(one, true), p.is_table});
    tiny.back().variable.grad() = one.clone();
    places[tiny.back().variable.impl().get()] = place;
  };
  const size_t count = model.parameters.size();
  for (size_t i = 0; i < count; ++i)
    if (model.parameters[i].trains) add(model.parameters[i], i);
  // If all parameters are frozen, add a dummy, because make_optimizers() needs a parameter to make an optimizer.
  if (tiny.empty()) add({.name = "none"}, count);
  asked.bytes.resize(count + 1), asked.elementwise.resize(count + 1, true);
  for (const auto& o : make_optimizers(config, tiny)) {
    for (const Variable& p : o->parameters())
      if (const size_t place = places.at(p.impl().get()); place < count)
        o->state_of(p).full = numel_of(model.parameters[place].shape);
    o->step();
    asked.name += (asked.name.empty() ? "" : " and ") + std::string(o->name());
    for (const Variable& p : o->parameters()) {
      const size_t i = places.at(p.impl().get());
      asked.bytes[i] = onebit ? 8 : 0;
      const Shape full = i < count ? model.parameters[i].shape : Shape(p.shape());
      for (const auto& [key, tensor] : o->state_of(p).tensors) {
        if (!tensor.defined()) continue;
        const double part = optim::is_per_block(key) ? 1 / double(o->block())
                                                     : double(numel_of(o->state_shape(key, full))) /
                                                           double(std::max<int64_t>(numel_of(full), 1));
        asked.bytes[i] += double(size_of(tensor.dtype())) * part;
      }
      asked.elementwise[i] = o->is_elementwise();
    }
  }
  if (onebit) asked.name += " with error feedback";
  return asked;
}

void add_bytes(Forecast& plan, const zero::ZeroOptions& o, int context_ranks) {
  const int64_t width = size_of(plan.parameter_dtype), gradient_width = size_of(plan.gradient_dtype);
  // A unit is a group of parameters that are communicated together. largest: bytes of the largest unit's gradients.
  // beside: number of frozen elements that belong to no unit.
  int64_t largest = 0, beside = plan.model.numel() - plan.model.trained();
  for (const zero::PlannedUnit& u : plan.units) {
    if (plan.trains(u)) largest = std::max(largest, u.layout.full() * gradient_width);
    else beside -= u.layout.numel();
  }
  for (int rank = 0; rank < plan.ranks; ++rank) {
    RankBytes& b = plan.bytes[size_t(rank)];
    b.parameters = beside * width;
    int64_t in_memory = 0;
    for (const zero::PlannedUnit& u : plan.units) {
      const int among = rank / (plan.ranks / u.ranks * context_ranks) * context_ranks + rank % context_ranks,
                number = o.stage == 0 ? 0 : among;  // this rank's number among the ranks that share the unit
      const int64_t part = u.layout.range(number).size();
      if (plan.trains(u)) b.gradients += (o.stage >= 2 ? part : u.layout.full()) * gradient_width;
      if (u.persistent) {
        b.parameters += (o.stage == 0 ? u.layout.numel() : u.layout.full()) * width;
      } else {
        in_memory += u.layout.shard;
        const bool moved = o.offload_param.device == zero::Offload::cpu ||
                           (o.offload_param.device == zero::Offload::nvme && in_memory > o.offload_param.max_in_cpu);
        (moved ? b.parameters_elsewhere : b.parameters) += part * width;
      }
      for (size_t place = 0; place < u.parameters.size(); ++place)
        b.optimizer +=
            std::llround(double(u.layout.owned(place, number).size()) * plan.state_bytes[u.parameters[place]]);
    }
    if (o.offload_optimizer.device != zero::Offload::none) {
      b.optimizer_elsewhere = int64_t(double(b.optimizer) * o.offload_optimizer.ratio);
      b.optimizer -= b.optimizer_elsewhere;
    }
    if (o.stage >= 2) b.buffers = (o.overlap_comm && plan.units.size() > 1 ? 2 : 1) * largest;
  }
}

/// Adds the bytes sent per rank: a reduce-scatter or all-gather sends (N-1)/N of the data, an all-reduce twice as much.
void add_traffic(Forecast& plan, const zero::ZeroOptions& o) {
  const double width = double(size_of(plan.parameter_dtype)), gradient_width = double(size_of(plan.gradient_dtype));
  const double passes = double(*plan.config.gradient_accumulation_steps);
  for (const zero::PlannedUnit& u : plan.units) {
    const double n = double(u.layout.full()) * double(u.ranks - 1) / double(u.ranks);
    // times: reductions of gradients per step. ZeRO 2 and 3 reduce after every micro-batch. An all-reduce counts twice.
    const double times =
        (o.stage >= 2 ? passes : 1) * (o.stage == 0 || (!o.reduce_scatter && u.layout.owner < 0) ? 2 : 1);
    if (plan.trains(u)) plan.gradient_traffic += n * gradient_width * times;
    if (o.stage >= 1) plan.parameter_traffic += n * width * (u.persistent ? 1 : 2 * passes);
  }
}

}  // namespace

Forecast plan(const Config& asked, const ModelShape& model, int ranks, int context_ranks, int expert_parallel) {
  Forecast p{.config = resolve(asked, ranks / context_ranks), .model = model, .ranks = ranks};
  const zero::ZeroOptions options = zero_options(p.config);
  p.parameter_dtype = parameter_dtype(p.config);
  p.gradient_dtype = options.communication_data_type.value_or(p.parameter_dtype);
  const Asked optimizer = ask_optimizer(p.config, model, p.parameter_dtype);
  p.optimizer = optimizer.name;
  p.state_bytes = optimizer.bytes;
  std::vector<zero::PlannedParameter> parameters;
  double state = 0;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const ModelShape::Parameter& one = model.parameters[i];
    parameters.push_back({.name = one.name,
                          .numel = one.numel(),
                          .kind = one.trains ? "trained" : "frozen",
                          .ranks = one.expert < 0 ? ranks : ranks / expert_parallel,
                          .trains = one.trains,
                          .elementwise = optimizer.elementwise[i]});
    state += p.state_bytes[i] * double(one.numel());
  }
  p.units = zero::plan_units(parameters, options);
  for (const zero::PlannedUnit& u : p.units) {
    p.padding += u.layout.padding();
    if (!u.persistent) p.largest_module = std::max(p.largest_module, u.layout.full());
  }
  const double psi = double(model.numel()), trained = double(model.trained()) / psi;
  p.formula = zero::model_state(options.stage, psi, ranks, double(size_of(p.parameter_dtype)), state / psi);
  p.formula.gradients *= trained * double(size_of(p.gradient_dtype)) / double(size_of(p.parameter_dtype));
  p.bytes.resize(size_t(ranks));
  add_bytes(p, options, context_ranks);
  add_traffic(p, options);
  return p;
}

// --- plans that combine parallelisms: plan() for each pipeline stage, then the traffic of the other parallelisms ---

namespace {

/// Time of a step in units of one forward pass: a backward takes two units, and recomputed activations one more.
double passes(const Config& c) {
  return c.checkpoints_activations() || c.pipeline.activation_checkpoint_interval > 0 ? 4 : 3;
}

}  // namespace

PlanForecast plan_parts(const Config& asked, const ModelShape& model, const parallel::Plan& plan,
                        const std::vector<double>& seconds) {
  PlanForecast p{.plan = plan, .config = asked, .model = model};
  Config& c = p.config;
  LOCKSTEP_CHECK(plan.ep == 1 || model.experts > 0, "[plan] ", to_string(plan),
                 " shares experts, and the model has none; add --experts N, or leave ep", plan.ep, " out");
  LOCKSTEP_CHECK(!c.has("pipeline.stages") || c.pipeline.stages == plan.pp, "[plan] ", to_string(plan), " contradicts ",
                 c.origin, ", where pipeline.stages is ", c.pipeline.stages, "; leave pipeline.stages out");
  LOCKSTEP_CHECK(plan.zero < 0 || !c.has("zero_optimization.stage") || c.zero_optimization.stage == plan.zero,
                 "[plan] ", to_string(plan), " contradicts ", c.origin, ", where zero_optimization.stage is ",
                 c.zero_optimization.stage, "; leave one of them out");
  c.pipeline.stages = plan.pp;
  if (plan.zero >= 0) c.zero_optimization.stage = plan.zero;
  if (c.zero_optimization.stage > 0) p.plan.zero = int(c.zero_optimization.stage);
  const Config sized = resolve(c, plan.dp);
  check_plan(
      p.plan,
      {.ranks = plan.ranks(),
       .layers = int64_t(model.list.size()),
       .chunks = pipeline::chunks_of({pipeline::parse_kind(c.pipeline.schedule), plan.pp, 1, int(c.pipeline.chunks)}),
       .heads = model.heads,
       .width = model.width,
       .inner = model.columns(),
       .vocab = model.vocab,
       .context = model.context,
       .context_parts = 2,
       .experts = model.experts});
  const pipeline::PipelineSchedule& schedule = p.schedule =
      pipeline::make_schedule({pipeline::parse_kind(c.pipeline.schedule), plan.pp,
                               int(*sized.gradient_accumulation_steps), int(c.pipeline.chunks)});
  std::vector<double> weights;
  std::vector<std::string> kinds;
  std::map<size_t, std::set<int>> users;  // layers that use each parameter
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
  using pipeline::SplitBy;
  const SplitBy by =
      seconds.empty() ? SplitBy::parse(c.pipeline.partition) : SplitBy{SplitBy::Method::time, {}, seconds};
  p.bounds = pipeline::balance(pipeline::weights_of(by, kinds, weights), schedule);

  const int m = schedule.request.micro_batches, last = schedule.virtual_stages() - 1;
  std::vector<double> flops(size_t(last) + 1);  // FLOPs of each virtual stage
  for (int rank = 0; rank < plan.pp; ++rank) {
    ModelShape part = model;
    part.parameters.clear();
    part.list.clear();
    part.layers = 0;
    p.flops.push_back(0);
    // activations, gradients: elements per token that the rank sends to other stages. reduces: elements per token that
    // tensor-parallel ranks all-reduce. exchanges: number of layers with experts.
    double activations = 0, gradients = 0, reduces = 0, exchanges = 0;
    std::set<size_t> has;
    for (int chunk = 0; chunk < schedule.request.chunks; ++chunk) {
      const int stage = schedule.virtual_stage(rank, chunk);
      double& work = flops[size_t(stage)];
      for (int i = p.bounds[size_t(stage)]; i < p.bounds[size_t(stage) + 1]; ++i) {
        const ModelShape::Layer& layer = model.list[size_t(i)];
        for (const size_t one : layer.parameters) {
          if (model.parameters[one].expert < model.experts / plan.ep && has.insert(one).second)
            part.parameters.push_back(model.parameters[one].sharded(plan.tp));
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
    // A tied parameter's gradient travels from the last stage that uses the parameter to the first, by way of the other
    // stages that use it.
    for (const auto& [one, layers] : users) {
      if (!model.parameters[size_t(one)].trains) continue;
      std::set<int> stages;
      for (const int layer : layers)
        stages.insert(int(std::upper_bound(p.bounds.begin(), p.bounds.end(), layer) - p.bounds.begin()) - 1);
      for (auto stage = stages.begin(); stage != stages.end() && std::next(stage) != stages.end(); ++stage) {
        const int to = schedule.place(*stage).rank, from = schedule.place(*std::next(stage)).rank;
        if (from == rank && to != rank)
          between += m * double(model.parameters[one].sharded(plan.tp).numel()) * double(size_of(own.parameter_dtype));
      }
    }
    p.stage_traffic.push_back(between);
    const double others = double(plan.tp - 1) / plan.tp;
    p.tensor_parallel_traffic.push_back(
        plan.tp == 1 ? 0
                     : m * (reduces * 2 * others * element +
                            (rank == schedule.place(last).rank ? 2 * tokens * 4 * (plan.tp - 1) : 0)));
    // Keys and values travel around the ring of context-parallel ranks in the forward, again in a recomputation, and in
    // the backward. The backward also sends the gradients of keys and values, in at least 32 bits.
    const double rounds = passes(c) - 1, keys = 2 * bytes / plan.tp,
                 wide = std::max(4., double(size_of(own.parameter_dtype))) / double(size_of(own.parameter_dtype));
    p.context_traffic.push_back(
        plan.cp == 1 ? 0 : m * double(part.layers) * keys * (rounds * (plan.cp - 1) + plan.cp * wide));
    // Each token's row travels to its top_k experts and back, in every forward and backward. Before a forward,
    // ranks tell each other how many rows each expert gets (docs/moe.md).
    const double forwards = rounds - 1, away = double(plan.ep - 1) / plan.ep;
    p.expert_traffic.push_back(m * exchanges * away *
                               (rounds * 2 * bytes * double(model.top_k) + forwards * 8 * double(model.experts)));
  }
  c = p.stages[0].config;
  if (plan.pp == 1) return p;
  pipeline::StageCosts costs{.input = passes(c) - 2};
  p.formula = pipeline::formula(schedule.request, costs).bubble;
  const double even = std::accumulate(flops.begin(), flops.end(), 0.) / double(flops.size());
  for (const double f : flops) costs.weights.push_back(f / even);
  p.bubble = pipeline::simulate(schedule, costs).bubble;
  return p;
}

const RankBytes& Forecast::fullest() const { return *std::ranges::max_element(bytes, {}, &RankBytes::total); }

double Forecast::optimizer_traffic() const {
  int64_t state = 0;
  for (const RankBytes& b : bytes) state = std::max(state, b.optimizer + b.optimizer_elsewhere);
  const double updated = double(model.trained()) / (config.zero_optimization.stage == 0 ? 1 : ranks);
  return 2 * double(state) + updated * double(size_of(parameter_dtype) + size_of(gradient_dtype));
}

bool overlaps(const PlanForecast& p) {
  return p.plan.pp == 1 && p.config.zero_optimization.overlap_comm.value_or(true);
}

namespace {

/// Seconds per step in which a rank computes while tensor parallelism all-reduces activations in the background.
double hidden_by_tensor_parallel(const PlanForecast& p, size_t rank, const Speeds& speeds) {
  const Forecast& stage = p.stages[rank];
  const double tokens = double(*stage.config.train_micro_batch_size_per_gpu) * double(p.model.context) / p.plan.cp;
  const int64_t asked = p.config.tensor_parallel.overlap_chunks,
                chunks = asked > 0 ? asked : tensor_parallel::automatic_chunks(int64_t(tokens));
  double hidden = 0;
  for (int chunk = 0; chunk < p.schedule.request.chunks && p.plan.tp > 1; ++chunk) {
    const size_t part = size_t(p.schedule.virtual_stage(int(rank), chunk));
    for (int i = p.bounds[part]; i < p.bounds[part + 1]; ++i) {
      const ModelShape::Layer& layer = p.model.list[size_t(i)];
      const double forward = p.model.flops(layer, p.plan.tp) * tokens / speeds.flops,
                   sum = 2. * (p.plan.tp - 1) / p.plan.tp * layer.out * tokens *
                         double(size_of(stage.parameter_dtype)) / speeds.bandwidth;
      const LayerSeconds waits = waits_for_tensor_parallel(p.model, layer, p.plan.tp, {forward, 2 * forward}, chunks,
                                                           [&](int64_t n) { return sum / double(n); });
      hidden += double(layer.reduces + layer.reduces_back) * sum - waits.forward - waits.backward;
    }
  }
  return hidden * p.schedule.request.micro_batches;
}

}  // namespace

PredictedTime predict(const PlanForecast& p, const Speeds& speeds) {
  PredictedTime t;
  const Config& c = p.config;
  const double tokens = double(*c.train_batch_size) * double(p.model.context), own = tokens / (p.plan.dp * p.plan.cp);
  // All in seconds. even: mean computing time of a stage. sync: communication between replicas. waits: all
  // communication except all-reduces of tensor parallelism that overlap with computation.
  double even = 0, sync = 0, waits = 0;
  for (size_t s = 0; s < p.stages.size(); ++s) {
    const Forecast& stage = p.stages[s];
    const double compute = passes(c) * p.flops[s] * own / speeds.flops;
    t.compute = std::max(t.compute, compute), even += compute / double(p.stages.size());
    sync = std::max(sync, p.data_parallel_traffic(s) / speeds.bandwidth);
    // Traffic between pipeline stages is left out, because it overlaps with computation.
    const double sent =
        (p.data_parallel_traffic(s) + p.tensor_parallel_traffic[s] + p.context_traffic[s] + p.expert_traffic[s]) /
        speeds.bandwidth;
    t.communication = std::max(t.communication, sent);
    waits = std::max(waits, sent - hidden_by_tensor_parallel(p, s, speeds));
    t.optimizer = std::max(t.optimizer, stage.optimizer_traffic() / speeds.memory);
  }
  const double computing = even / (1 - p.bubble);
  t.step = (overlaps(p) ? std::max(computing, sync) + waits - sync : computing + waits) + t.optimizer;
  t.tokens = tokens / t.step;
  return t;
}

// --- speeds of this machine ---

Speeds measure_speeds(DType dtype) {
  /// Calls `call` for a third of a second, and returns `work` divided by the shortest time of a call.
  const auto best = [&](double work, auto&& call) {
    double least = INFINITY;
    call();
    for (const double start = steady_seconds(); steady_seconds() - start < 0.33;) {
      const double begin = steady_seconds();
      call();
      least = std::min(least, steady_seconds() - begin);
    }
    return work / least;
  };
  const int64_t n = 768;
  const Tensor a = ones({n, n}, {.dtype = dtype}), b = ones({n, n}, {.dtype = dtype});
  const size_t bytes = size_t(32) << 20;
  std::vector<char> from(bytes, 1), to(bytes, 2);
  const Tensor x = ones({int64_t(bytes / 4)});
  return {.flops = best(2. * double(n) * double(n) * double(n), [&] { matmul(a, b); }),
          .bandwidth = best(double(bytes), [&] { std::memcpy(to.data(), from.data(), bytes); }),
          .memory = best(2 * double(bytes), [&] { mul_scalar_(x, 1); })};
}

}  // namespace lockstep::engine
