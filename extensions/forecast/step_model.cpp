// Predicts the time of a training step. See step_model.h.
#include "extensions/forecast/step_model.h"

#include <cmath>

#include "parallel/tensor_parallel/overlap.h"
#include "pipeline/simulate.h"

namespace lockstep::report {
namespace {

using dist::Collective;
using engine::ModelShape;

std::string rounded_percent(double part) { return str(std::round(part * 1000) / 10, " %"); }

/// Seconds of a layer in a micro-batch, and its waits for tensor-parallel sums of activations.
struct Layer {
  double forward = 0, backward = 0, waits = 0, waits_back = 0;
  double both() const { return forward + backward; }
  void operator+=(const Layer& other) {
    forward += other.forward, backward += other.backward, waits += other.waits, waits_back += other.waits_back;
  }
};

/// The layers of the model, for one micro-batch. sum(n): seconds to sum 1/n of the micro-batch's activations over
/// tensor-parallel ranks.
std::vector<Layer> layers_of(const TrainingJob& job, const std::function<double(int64_t)>& sum) {
  const ModelShape& m = job.model;
  const int64_t chunks =
      job.overlap_chunks > 0 ? job.overlap_chunks : tensor_parallel::automatic_chunks(job.micro_batch * m.context);
  std::vector<Layer> layers;
  for (const ModelShape::Layer& one : m.list) {
    const double full = m.flops(one), own = full > 0 ? m.flops(one, job.plan.tp) / full : 1,
                 part = own * double(job.micro_batch);
    const double again = job.recompute && one.repeats;
    Layer& layer = layers.emplace_back(Layer{part * one.forward, part * (one.backward + again * one.forward)});
    if (!one.repeats || job.plan.tp == 1) continue;
    const engine::LayerSeconds waits =
        engine::waits_for_tensor_parallel(m, one, job.plan.tp, {layer.forward, part * one.backward}, chunks, sum);
    layer.waits = waits.forward, layer.waits_back = waits.backward + again * waits.forward;
  }
  return layers;
}

engine::Config config_of(const TrainingJob& job) {
  engine::Config c{.train_micro_batch_size_per_gpu = job.micro_batch, .gradient_accumulation_steps = job.micro_batches};
  c.fp16.enabled = job.dtype == f16, c.bf16.enabled = job.dtype == bf16;
  c.pipeline.schedule = name_of(job.schedule), c.pipeline.chunks = job.chunks;
  return c;
}

void check(const TrainingJob& job, const Cluster& cluster) {
  const parallel::Plan& l = job.plan;
  LOCKSTEP_CHECK(
      l.cp * l.ep == 1, "[simulate] ", to_string(l),
      ": times of context (cp) and expert parallelism (ep) are not modelled; leave them out, or ask lockstep "
      "plan what they send");
  LOCKSTEP_CHECK(job.micro_batch >= 1 && job.micro_batches >= 1,
                 "[simulate] expected 1 micro-batch or more of 1 sample or more, got ", job.micro_batches, " of ",
                 job.micro_batch);
  LOCKSTEP_CHECK(cluster.ranks_per_host >= 1, "[simulate] expected 1 rank or more on a host, got ",
                 cluster.ranks_per_host);
}

}  // namespace

double collective_seconds(Collective collective, int n, int stride, double bytes, const Cluster& cluster) {
  if (n <= 1) return 0;
  const dist::NetworkLink& between = cluster.network.between;
  const dist::NetworkLink& within = cluster.network.within ? *cluster.network.within : between;
  const int per_host = std::clamp(cluster.ranks_per_host / std::max(stride, 1), 1, n);
  const double k = per_host, m = std::ceil(double(n) / k);  // ranks of a host, hosts
  const double passes = collective == Collective::all_reduce ? 2 : 1;
  const double local = (k - 1) * within.latency + (k - 1) / k * bytes / within.bandwidth;
  const double far = (m - 1) * between.latency + (m - 1) / m * (bytes / k) / between.bandwidth;
  return passes * (local + far);
}

void give_seconds(ModelShape& model, double flops, double backward) {
  LOCKSTEP_CHECK(flops > 0, "[simulate] expected a speed of more than 0 FLOP/s, got ", flops);
  for (ModelShape::Layer& layer : model.list) {
    layer.forward = model.flops(layer) * double(model.context) / flops;
    layer.backward = backward * layer.forward;
  }
}

StepPrediction predict_step(const TrainingJob& job, double memory, const Cluster& cluster) {
  check(job, cluster);
  LOCKSTEP_CHECK(memory > 0,
                 "[simulate] expected `memory`, the speed of the optimizer, to be more than 0 bytes/s, got ", memory);
  const parallel::Plan& l = job.plan;
  const ModelShape& model = job.model;
  const double m = double(job.micro_batches), width = double(size_of(job.dtype));
  const double activation = double(job.micro_batch) * double(model.context) * double(model.width) * width;
  const auto sum_of = [&](int64_t part) {
    return collective_seconds(Collective::all_reduce, l.tp, 1, activation / double(part), cluster);
  };
  const std::vector<Layer> layers = layers_of(job, sum_of);
  std::vector<double> seconds;
  for (const Layer& layer : layers) seconds.push_back(layer.both());
  const engine::PlanForecast plan = engine::plan_parts(config_of(job), model, l, seconds);
  const pipeline::PipelineSchedule& schedule = plan.schedule;
  const int v = schedule.request.chunks, stages = schedule.virtual_stages();

  // Seconds per micro-batch of each virtual stage (parts), of each rank (ranks), and of the whole model.
  std::vector<Layer> parts(size_t(stages), Layer{}), ranks(size_t(l.pp), Layer{});
  Layer full;
  for (int s = 0; s < stages; ++s) {
    const size_t rank = size_t(schedule.place(s).rank);
    for (int i = plan.bounds[size_t(s)]; i < plan.bounds[size_t(s) + 1]; ++i)
      for (Layer* sum : {&parts[size_t(s)], &ranks[rank], &full}) *sum += layers[size_t(i)];
  }
  const double forward = full.forward / l.pp, backward = full.backward / l.pp;
  const Layer slow = std::ranges::max(ranks, {}, &Layer::both);
  const double slow_forward = slow.forward + slow.waits, slow_backward = slow.backward + slow.waits_back;

  StepPrediction p;
  for (const ModelShape::Layer& layer : model.list)
    p.forward += double(job.micro_batch) * layer.forward, p.backward += double(job.micro_batch) * layer.backward;
  const auto add = [&](const char* name, double seconds, const std::string& explanation) {
    p.terms.push_back({name, explanation, std::max(0., seconds)});
  };
  add("compute", m * (forward + backward),
      str(job.micro_batches, " micro-batches, forward ", forward, " s and backward ", backward, " s in a rank"));
  if (l.pp > 1)
    add("uneven stages", m * (slow.both() - forward - backward),
        str("the slowest rank takes ", slow.both(), " s for a micro-batch"));

  // Tensor parallelism: one all-reduce of the activations after attention and one after the MLP, and as many in the
  // backward.
  if (l.tp > 1)
    add("tensor parallel", m * (slow.waits + slow.waits_back),
        str(job.recompute ? 6 : 4, " all-reduces a block over ", l.tp, " ranks, ", sum_of(1),
            " s each, less what products hide"));

  // The pipeline: simulates the schedule with each part's cost relative to the slowest rank.
  if (l.pp > 1) {
    const int apart = l.tp * l.dp;  // distance between the ranks of adjacent stages
    const bool near = apart * l.pp <= cluster.ranks_per_host;
    const dist::NetworkLink& link = near && cluster.network.within ? *cluster.network.within : cluster.network.between;
    const double hop = link.latency + activation / link.bandwidth;
    pipeline::StageCosts costs{.forward = slow_forward, .input = slow_backward / 2, .weight = slow_backward / 2};
    const pipeline::BubbleFormula formula = pipeline::formula(schedule.request, costs);
    for (const Layer& part : parts) {
      const double own = part.both() + part.waits + part.waits_back, all = slow_forward + slow_backward;
      costs.weights.push_back(all > 0 ? own / all * v : 1);
    }
    const double ideal = pipeline::simulate(schedule, costs).seconds, busy = m * (slow_forward + slow_backward);
    costs.latency = hop;
    const double real = pipeline::simulate(schedule, costs).seconds;
    p.bubble = ideal > 0 ? 1 - busy / ideal : 0;
    add("idle (bubble)", ideal - busy,
        str(rounded_percent(p.bubble), " of the slowest rank's time; ", formula.text, " = ",
            rounded_percent(formula.bubble)));
    add("messages", real - ideal, str("activations and their gradients, ", hop, " s each"));
  }

  // engine::plan_parts() has computed memory and traffic of each stage. Takes the largest of each over the stages.
  double moved = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const engine::Forecast& stage = plan.stages[s];
    if (stage.fullest().total() > p.memory.total()) p.memory = stage.fullest();
    moved = std::max(moved, stage.optimizer_traffic());
    p.gradient_bytes = std::max(p.gradient_bytes, stage.gradient_traffic);
    p.parameter_bytes = std::max(p.parameter_bytes, stage.parameter_traffic);
    p.tensor_bytes = std::max(p.tensor_bytes, plan.tensor_parallel_traffic[s]);
    p.message_bytes = std::max(p.message_bytes, plan.stage_traffic[s]);
  }
  if (l.dp > 1) {
    const double sent = double(l.dp - 1) / l.dp;
    const auto seconds = [&](Collective collective, double traffic) {  // traffic: bytes that a rank sends
      const double full = traffic / sent / (collective == Collective::all_reduce ? 2 : 1);
      return collective_seconds(collective, l.dp, l.tp, full, cluster);
    };
    // Gradients: the last bucket is ready when the backward ends; earlier buckets overlap with the backward.
    const double passes = l.zero >= 2 ? m : 1;
    const Collective kind = l.zero <= 0 ? Collective::all_reduce : Collective::reduce_scatter;
    const double one = seconds(kind, p.gradient_bytes / passes);
    const double window = job.overlap && l.pp == 1 ? slow_backward : 0;
    const double bytes = p.gradient_bytes / passes / sent / (l.zero <= 0 ? 2 : 1),
                 tail = one * std::min(1., job.bucket_bytes / std::max(bytes, 1.));
    add("gradients", passes * (window > 0 ? std::max(tail, one - window) : one),
        str(name_of(kind), " over ", l.dp, " ranks, ", one, " s",
            passes > 1 ? str(", for each of ", job.micro_batches, " micro-batches") : "",
            window > 0 ? str(", beside ", window, " s of backward") : ""));
    if (l.zero == 1 || l.zero == 2) {
      const double gather = seconds(Collective::all_gather, p.parameter_bytes);
      add("parameters", gather, str("all_gather over ", l.dp, " ranks after the step"));
    } else if (l.zero == 3) {  // gathered ahead of each forward and backward
      const double gather = seconds(Collective::all_gather, p.parameter_bytes / (2 * m)),
                   first = gather / double(model.list.size());
      const double under = job.overlap ? slow_forward : 0, left = job.overlap ? std::max(0., slow_backward - one) : 0;
      add("parameters", m * (std::max(first, gather - under) + std::max(0., gather - left)),
          str("all_gather over ", l.dp, " ranks, ", gather, " s, before each forward and each backward"));
    }
  }
  add("optimizer", moved / memory, str(plan.stages[0].optimizer, ", ", moved, " bytes"));

  for (const Term& t : p.terms) p.step += t.seconds;
  p.bound = size_t(std::ranges::max_element(p.terms, {}, &Term::seconds) - p.terms.begin());
  const double tokens = m * double(job.micro_batch) * double(model.context) * l.dp;
  p.tokens = p.step > 0 ? tokens / p.step : 0;
  p.flops = 3 * model.forward_flops() * tokens;
  return p;
}

}  // namespace lockstep::report
