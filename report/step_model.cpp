#include "report/step_model.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "pipeline/simulate.h"
#include "pipeline/split.h"
#include "tensor/check.h"

namespace lockstep::report {
namespace {

using dist::Collective;
using engine::ModelShape;

std::string rounded_percent(double part) { return str(std::round(part * 1000) / 10, " %"); }

/// What a layer of a pipeline takes, and its all-reduces of activations in a forward with slices.
struct Layer {
  double forward = 0, backward = 0, reduces = 0;
  double both() const { return forward + backward; }
  void operator+=(const Layer& other) {
    forward += other.forward, backward += other.backward, reduces += other.reduces;
  }
};

std::vector<Layer> layers_of(const ModelShape& m, const StepCosts& c, bool recompute, int tp) {
  std::vector<Layer> layers;
  for (size_t i = 0; i < m.list.size(); ++i) {
    const ModelShape::Layer& one = m.list[i];
    const double whole = m.flops(one), part = whole > 0 ? m.flops(one, tp) / whole : 1;
    layers.push_back({.forward = part * c.forward.at(i),
                      .backward = part * (c.backward.at(i) + (recompute && one.repeats ? c.forward[i] : 0)),
                      .reduces = one.repeats ? double(one.reduces) : 0});
  }
  return layers;
}

/// What a rank with these layers has, sliced.
ModelShape slice(const ModelShape& m, const std::vector<int>& layers, int tp) {
  ModelShape out = m;
  out.parameters.clear();
  out.list.clear();
  std::set<size_t> has;
  for (const int i : layers)
    for (const size_t p : m.list[size_t(i)].parameters)
      if (has.insert(p).second) out.parameters.push_back(m.parameters[p].sliced(tp));
  return out;
}

engine::Config config_of(const TrainingJob& job) {
  const std::string type = job.dtype == bf16  ? ",\"bf16\":{\"enabled\":true}"
                           : job.dtype == f16 ? ",\"fp16\":{\"enabled\":true}"
                                              : "";
  return engine::config_from_json(str(
      "{\"train_micro_batch_size_per_gpu\":", job.micro_batch, ",\"gradient_accumulation_steps\":", job.micro_batches,
      ",\"zero_optimization\":{\"stage\":", std::max(job.plan.zero, 0), "}", type, "}"));
}

void check(const TrainingJob& job, const Cluster& cluster) {
  const parallel::Plan& l = job.plan;
  const auto& m = job.model;
  LOCKSTEP_CHECK(
      l.cp * l.ep == 1, "[simulate] ", to_string(l),
      ": times of context (cp) and expert parallelism (ep) are not modelled; leave them out, or ask lockstep "
      "plan what they send");
  LOCKSTEP_CHECK(job.micro_batch >= 1 && job.micro_batches >= 1,
                 "[simulate] expected 1 micro-batch or more of 1 sample or more, got ", job.micro_batches, " of ",
                 job.micro_batch);
  LOCKSTEP_CHECK(cluster.ranks_per_host >= 1, "[simulate] expected 1 rank or more on a host, got ",
                 cluster.ranks_per_host);
  LOCKSTEP_CHECK(m.width % l.tp == 0, "[simulate] expected a width that tp divides, got ", m.width, " and tp", l.tp);
  LOCKSTEP_CHECK(
      l.zero < 2 || l.pp == 1,
      "[simulate] expected ZeRO stage 0 or 1 with a pipeline, which accumulates gradients of all micro-batches, got ",
      to_string(l));
}

}  // namespace

double collective_seconds(Collective collective, int n, int stride, double bytes, const Cluster& cluster) {
  if (n <= 1) return 0;
  const dist::Link& between = cluster.network.between;
  const dist::Link& within = cluster.network.within ? *cluster.network.within : between;
  const int per_host = std::clamp(cluster.ranks_per_host / std::max(stride, 1), 1, n);
  const double k = per_host, m = std::ceil(double(n) / k);  // ranks of a host, hosts
  const double passes = collective == Collective::all_reduce ? 2 : 1;
  const double local = (k - 1) * within.latency + (k - 1) / k * bytes / within.bandwidth;
  const double far = (m - 1) * between.latency + (m - 1) / m * (bytes / k) / between.bandwidth;
  return passes * (local + far);
}

StepCosts costs_of_flops(const ModelShape& model, int64_t micro_batch, double flops, double memory) {
  LOCKSTEP_CHECK(flops > 0 && memory > 0, "[simulate] expected more than 0 FLOP/s and bytes/s, got ", flops, " and ",
                 memory);
  StepCosts c{.memory = memory, .origin = "given"};
  for (const auto& layer : model.list) {
    const double seconds = model.flops(layer) * double(micro_batch) * double(model.context) / flops;
    c.forward.push_back(seconds), c.backward.push_back(2 * seconds);
  }
  return c;
}

StepCosts costs_of_layers(const ModelShape& model, int64_t micro_batch, double memory) {
  StepCosts c{.memory = memory, .origin = "measured here"};
  for (const auto& layer : model.list)
    c.forward.push_back(layer.forward * double(micro_batch)),
        c.backward.push_back(layer.backward * double(micro_batch));
  return c;
}

StepPrediction predict_step(const TrainingJob& job, const StepCosts& c, const Cluster& cluster) {
  check(job, cluster);
  const parallel::Plan& l = job.plan;
  const ModelShape& model = job.model;
  const double m = double(job.micro_batches), width = double(size_of(job.dtype));
  const pipeline::Schedule schedule = pipeline::make_schedule({job.schedule, l.pp, int(job.micro_batches), job.chunks});
  const int v = schedule.request.chunks, stages = schedule.virtual_stages();
  const std::vector<Layer> layers = layers_of(model, c, job.recompute, l.tp);
  LOCKSTEP_CHECK(int(layers.size()) >= stages, "[simulate] expected at least one layer for each of ", stages,
                 " stages, got ", layers.size(), " layers");
  std::vector<double> weights;
  for (const Layer& layer : layers) weights.push_back(layer.both());
  const std::vector<int> bounds = pipeline::balance(weights, schedule);

  // Parts of a micro-batch: of each virtual stage, of a rank, of the slowest, and of all.
  std::vector<Layer> parts(size_t(stages), Layer{}), ranks(size_t(l.pp), Layer{});
  std::vector<std::vector<int>> owned(size_t(l.pp), std::vector<int>{});  // layers of a rank
  Layer whole;
  for (int s = 0; s < stages; ++s) {
    const size_t rank = size_t(schedule.place(s).rank);
    for (int i = bounds[size_t(s)]; i < bounds[size_t(s) + 1]; ++i) {
      for (Layer* sum : {&parts[size_t(s)], &ranks[rank], &whole}) *sum += layers[size_t(i)];
      owned[rank].push_back(i);
    }
  }
  const double forward = whole.forward / l.pp, backward = whole.backward / l.pp;
  const Layer slow =
      *std::max_element(ranks.begin(), ranks.end(), [](const Layer& a, const Layer& b) { return a.both() < b.both(); });
  const double most = slow.both();

  StepPrediction p;
  const auto add = [&](const char* name, double seconds, const std::string& how) {
    p.terms.push_back({name, how, std::max(0., seconds)});
  };
  add("compute", m * (forward + backward),
      str(job.micro_batches, " micro-batches, forward ", forward, " s and backward ", backward, " s in a rank"));
  if (l.pp > 1)
    add("uneven stages", m * (most - forward - backward), str("the slowest rank takes ", most, " s for a micro-batch"));

  // Tensor parallelism: an all-reduce of the activations after attention and after the MLP, and the same backward.
  const double tp = l.tp, activation = double(job.micro_batch) * double(model.context) * double(model.width) * width;
  const double reduce = collective_seconds(Collective::all_reduce, l.tp, 1, activation, cluster);
  const double again = job.recompute ? 2 : 1, tensor_forward = slow.reduces * reduce,
               tensor_backward = again * tensor_forward;
  if (l.tp > 1) {
    add("tensor parallel", m * (tensor_forward + tensor_backward),
        str(2 + 2 * again, " all-reduces a block over ", l.tp, " ranks, ", reduce, " s each"));
    p.tensor_bytes = m * (1 + again) * slow.reduces * 2 * (tp - 1) / tp * activation;
  }

  // The pipeline: the schedule itself, a part's cost against that of the slowest rank.
  if (l.pp > 1) {
    const double whole_forward = slow.forward + tensor_forward, whole_backward = slow.backward + tensor_backward;
    const int apart = l.tp * l.dp;  // of ranks with the same slice
    const bool near = apart * l.pp <= cluster.ranks_per_host;
    const dist::Link& link = near && cluster.network.within ? *cluster.network.within : cluster.network.between;
    const double hop = link.latency + activation / link.bandwidth;
    pipeline::Costs costs{.forward = whole_forward, .input = whole_backward / 2, .weight = whole_backward / 2};
    const pipeline::Formula formula = pipeline::formula(schedule.request, costs);
    for (const Layer& part : parts) {
      const double own = part.both() + part.reduces * (1 + again) * reduce, all = whole_forward + whole_backward;
      costs.weights.push_back(all > 0 ? own / all * v : 1);
    }
    const double ideal = pipeline::simulate(schedule, costs).seconds, busy = m * (whole_forward + whole_backward);
    costs.latency = hop;
    const double real = pipeline::simulate(schedule, costs).seconds;
    p.bubble = ideal > 0 ? 1 - busy / ideal : 0;
    add("idle (bubble)", ideal - busy,
        str(rounded_percent(p.bubble), " of the slowest rank's time; ", formula.text, " = ",
            rounded_percent(formula.bubble)));
    add("messages", real - ideal, str("activations and their gradients, ", hop, " s each"));
    p.message_bytes = 2. * m * v * activation;
  }

  // Copies: what engine::plan() says of the heaviest rank's slice.
  ModelShape heaviest;
  for (const std::vector<int>& own : owned) {
    ModelShape part = slice(model, own, l.tp);
    if (part.numel() > heaviest.numel()) heaviest = std::move(part);
  }
  const engine::Forecast plan = engine::plan(config_of(job), l.pp * l.tp == 1 ? model : heaviest, l.dp);
  p.gradient_bytes = plan.gradient_traffic, p.parameter_bytes = plan.parameter_traffic;
  double state = 0;
  for (const engine::RankBytes& b : plan.bytes) {
    if (b.total() > p.memory.total()) p.memory = b;
    state = std::max(state, double(b.optimizer + b.optimizer_elsewhere));
  }
  if (l.dp > 1) {
    const double sent = double(l.dp - 1) / l.dp;
    const auto seconds = [&](Collective collective, double traffic) {  // of so many bytes sent by a rank
      const double whole = traffic / sent / (collective == Collective::all_reduce ? 2 : 1);
      return collective_seconds(collective, l.dp, l.tp, whole, cluster);
    };
    // Gradients: the last bucket is ready when the backward is done; those before it go on meanwhile.
    const double passes = l.zero >= 2 ? m : 1;
    const Collective kind = l.zero <= 0 ? Collective::all_reduce : Collective::reduce_scatter;
    const double one = seconds(kind, plan.gradient_traffic / passes);
    const double window = job.overlap && l.pp == 1 ? slow.backward + tensor_backward : 0;
    const double bytes = plan.gradient_traffic / passes / sent / (l.zero <= 0 ? 2 : 1),
                 tail = one * std::min(1., job.bucket_bytes / std::max(bytes, 1.));
    add("gradients", passes * (window > 0 ? std::max(tail, one - window) : one),
        str(name_of(kind), " over ", l.dp, " ranks, ", one, " s",
            passes > 1 ? str(", for each of ", job.micro_batches, " micro-batches") : "",
            window > 0 ? str(", beside ", window, " s of backward") : ""));
    if (l.zero == 1 || l.zero == 2) {
      const double gather = seconds(Collective::all_gather, plan.parameter_traffic);
      add("parameters", gather, str("all_gather over ", l.dp, " ranks after the step"));
    } else if (l.zero == 3) {  // gathered ahead, for each forward and each backward
      const double gather = seconds(Collective::all_gather, plan.parameter_traffic / (2 * m)),
                   first = gather / double(model.list.size());
      const double under = job.overlap ? slow.forward + tensor_forward : 0,
                   left = job.overlap ? std::max(0., slow.backward + tensor_backward - one) : 0;
      add("parameters", m * (std::max(first, gather - under) + std::max(0., gather - left)),
          str("all_gather over ", l.dp, " ranks, ", gather, " s, before each forward and each backward"));
    }
  }
  const double own = double(plan.model.numel()) / (l.zero <= 0 ? 1 : l.dp);
  const double moved = 2 * state + own * double(size_of(plan.parameter_dtype) + size_of(plan.gradient_dtype));
  add("optimizer", moved / c.memory, str(plan.optimizer, ", ", moved, " bytes"));

  for (const Term& t : p.terms) p.step += t.seconds;
  p.bound = size_t(std::max_element(p.terms.begin(), p.terms.end(),
                                    [](const Term& a, const Term& b) { return a.seconds < b.seconds; }) -
                   p.terms.begin());
  const double tokens = m * double(job.micro_batch) * double(model.context) * l.dp;
  p.tokens = p.step > 0 ? tokens / p.step : 0;
  p.flops = 3 * model.forward_flops() * tokens;
  return p;
}

}  // namespace lockstep::report
