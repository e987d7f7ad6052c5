// Costs of a step's parts, measured on this machine or taken from traces: see step_model.h.
#include <cmath>
#include <mutex>

#include "base/clock.h"
#include "extensions/forecast/step_model.h"
#include "nn/models/gpt.h"
#include "optim/optim.h"

namespace lockstep::report {
namespace {

/// Median time of `times` calls after a warm-up. Every rank makes the same calls, as they may wait for each other.
double seconds_of(int times, const std::function<void()>& call) {
  for (int i = 0; i < 3; ++i) call();
  std::vector<double> all;
  for (int i = 0; i < times; ++i) {
    const double begin = steady_seconds();
    call();
    all.push_back(steady_seconds() - begin);
  }
  return median(std::move(all));
}

/// Fits seconds = messages * latency + bytes / bandwidth to the points (bytes, seconds), by least squares. The latency
/// is at least 0.
dist::NetworkLink fit(const std::vector<std::pair<double, double>>& points, double messages) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [bytes, seconds] : points) {
    const double w = 1 / std::max(seconds * seconds, 1e-18);  // errors are proportional to the time
    n += w, x += w * bytes, y += w * seconds, xx += w * bytes * bytes, xy += w * bytes * seconds;
  }
  double slope = (n * xy - x * y) / std::max(n * xx - x * x, 1e-300);
  // If noise makes the slope 0 or negative, assumes no latency: all of the time is for the bytes.
  if (!(slope > 0)) slope = xy / xx;
  const double start = (y - slope * x) / n;
  LOCKSTEP_CHECK(
      slope > 0 && std::isfinite(slope),
      "[simulate] expected collectives that move something, got none that do; give --bandwidth and --latency");
  return {.latency = std::max(0., start) / messages, .bandwidth = 1 / slope};
}

}  // namespace

void measure_gpt(engine::ModelShape& model, int64_t micro_batch, int ranks) {
  LOCKSTEP_CHECK(ranks >= 1 && ranks <= 64, "[simulate] expected 1 to 64 ranks to measure with, got ", ranks);
  std::mutex mutex;
  dist::spawn(ranks, [&](int) {
    nn::GPT gpt(
        {.vocab = model.vocab, .context = model.context, .layers = 1, .width = model.width, .heads = model.heads});
    engine::ModelShape mine = engine::shape_of(static_cast<nn::Module&>(gpt), model.width, model.context, model.vocab);
    const nn::LayerList list = gpt.layers();
    const Tensor tokens = randint(0, model.vocab, {micro_batch, model.context});
    dist::world().barrier();
    engine::measure(mine, gpt, list, {tokens}, [&](const Variable& scores) { return list.loss(scores, {tokens}); });
    std::map<std::string, const engine::ModelShape::Layer*> measured;  // by kind, as all blocks are alike
    for (const auto& layer : mine.list) measured[layer.kind] = &layer;
    const std::lock_guard lock(mutex);
    for (auto& layer : model.list) {
      layer.forward = std::max(layer.forward, measured.at(layer.kind)->forward);
      layer.backward = std::max(layer.backward, measured.at(layer.kind)->backward);
    }
  });
}

double measure_memory(int ranks) {
  std::mutex mutex;
  double least = INFINITY;
  dist::spawn(ranks, [&](int) {
    const int64_t n = 1 << 21;
    Variable weight(ones({n}), true);
    optim::AdamW adam({weight}, {});
    weight.grad() = ones({n});
    dist::world().barrier();
    const double step = seconds_of(25, [&] { adam.step(); });
    // Bytes per element as in engine::predict(): 2 * 8 to read and write two moments, 8 for parameter and gradient.
    const std::lock_guard lock(mutex);
    least = std::min(least, double(n) * (2 * 8 + 8) / step);
  });
  return least;
}

dist::NetworkLink measure_link(int ranks) {
  LOCKSTEP_CHECK(ranks >= 2 && ranks <= 64, "[simulate] expected 2 to 64 ranks to measure a network with, got ", ranks);
  dist::NetworkLink link;
  dist::spawn(ranks,
              [&](int rank) {
                std::vector<std::pair<double, double>> points;
                for (const int64_t count : {1 << 10, 1 << 14, 1 << 18, 1 << 21}) {
                  const Tensor x = ones({count}, {.device = cpu});
                  const double seconds = seconds_of(count > 1 << 18 ? 7 : 25,
                                                    [&] { dist::world().all_reduce(x, {.op = dist::ReduceOp::mean}); });
                  points.emplace_back(2. * (ranks - 1) / ranks * double(count) * 4, seconds);
                }
                if (rank == 0) link = fit(points, 2. * (ranks - 1));
              },
              {.transport = "shm"});
  return link;
}

double measure_run(const RunFiles& run, const engine::ModelShape& traced, int64_t batch, engine::ModelShape& model) {
  const data::Json* parallel = run.note("parallel");
  LOCKSTEP_CHECK(
      parallel, "[simulate] ", run.folder,
      ": expected the traces of a training program without a pipeline, whose settings are in them; found none, "
      "train with --trace");
  // Returns the median seconds of one part of a step, over all ranks and steps.
  const auto seconds_in = [&](StepPhase part) {
    std::vector<double> all;
    for (const RankTrace& t : run.traces)
      for (const auto& step : steps_by_part(t)) all.push_back(step[size_t(part)]);
    return median(std::move(all));
  };
  const double forward = seconds_in(StepPhase::forward), backward = seconds_in(StepPhase::backward),
               optimizer = seconds_in(StepPhase::optimizer);
  LOCKSTEP_CHECK(forward > 0 && backward > 0 && optimizer > 0, "[simulate] ", run.folder,
                 ": expected traces of steps with forward, backward and optimizer, found none; train with --trace");
  const double tokens = double(batch) * double(traced.context) * number_of(*parallel, "micro_batches", 1),
               rate = traced.forward_flops() * tokens / forward,
               owned =
                   double(traced.numel()) / (number_of(*parallel, "zero") > 0 ? number_of(*parallel, "ranks", 1) : 1);
  give_seconds(model, rate, backward / forward);
  return owned * (2 * 8 + 8) / optimizer;  // bytes per element as in measure_memory()
}

dist::NetworkLink link_of_traces(const std::vector<RankTrace>& traces) {
  // The rank that arrives last waits for no other rank, so the shortest time on any rank is the collective's own time.
  std::map<std::pair<int, double>, double> least;  // seconds, by number of ranks and bytes
  for (const RankTrace& t : traces) {
    for (const TraceEvent& e : t.events) {
      if (e.category != trace::Category::collective || e.name != "all_reduce" || e.number("sent") <= 0) continue;
      const auto [found, fresh] = least.try_emplace({int(e.number("ranks")), e.number("sent")}, e.seconds);
      if (!fresh) found->second = std::min(found->second, e.seconds);
    }
  }
  std::map<int, std::vector<std::pair<double, double>>> groups;
  for (const auto& [key, seconds] : least) groups[key.first].emplace_back(key.second, seconds);
  for (const auto& [ranks, points] : groups)
    if (points.size() >= 2) return fit(points, 2. * (ranks - 1));
  fail(
      "[simulate] expected all-reduces of two sizes or more in the traces, found fewer; give --bandwidth and "
      "--latency");
}

}  // namespace lockstep::report
