// What a step's parts cost: measured on this machine, or taken from traces.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>

#include "dist/process_group.h"
#include "nn/models/gpt.h"
#include "optim/optim.h"
#include "report/step_model.h"
#include "tensor/check.h"
#include "tensor/ops.h"

namespace lockstep::report {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Median of what `call` takes, over about half a second and at least three times.
double seconds_of(const std::function<void()>& call) {
  call();
  std::vector<double> all;
  for (const auto start = Clock::now(); all.size() < 3 || (since(start) < 0.5 && all.size() < 200);) {
    const auto begin = Clock::now();
    call();
    all.push_back(since(begin));
  }
  std::nth_element(all.begin(), all.begin() + long(all.size() / 2), all.end());
  return all[all.size() / 2];
}

/// Least squares of seconds over bytes, with a latency of 0 or more.
dist::Link fit(const std::vector<std::pair<double, double>>& points, double messages) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [bytes, seconds] : points) {
    const double w = 1 / std::max(seconds * seconds, 1e-18);  // errors are a part of the time, not an amount
    n += w, x += w * bytes, y += w * seconds, xx += w * bytes * bytes, xy += w * bytes * seconds;
  }
  double slope = (n * xy - x * y) / std::max(n * xx - x * x, 1e-300);
  if (!(slope > 0))
    slope = xy / xx;  // so few or so small that noise hides what bytes cost: they then count for all of the time
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
    engine::measure(mine, gpt, list, tokens, [&](const Variable& scores) { return list.loss(scores, {tokens}); });
    // Its layers before the block, those of the block for each block, and those behind.
    const auto repeats = [](const auto& layer) { return layer.repeats; };
    const size_t before = size_t(std::find_if(mine.list.begin(), mine.list.end(), repeats) - mine.list.begin()),
                 block = size_t(std::count_if(mine.list.begin(), mine.list.end(), repeats)),
                 behind = mine.list.size() - before - block, all = model.list.size();
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < all; ++i) {
      const size_t like = i < before         ? i
                          : i + behind < all ? before + (i - before) % block
                                             : mine.list.size() + i - all;
      auto& layer = model.list[i];
      layer.forward = std::max(layer.forward, mine.list[like].forward);
      layer.backward = std::max(layer.backward, mine.list[like].backward);
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
    const double step = seconds_of([&] { adam.step(); });
    // Two states read and written, parameter and gradient, as engine::predict() counts.
    const std::lock_guard lock(mutex);
    least = std::min(least, double(n) * (2 * 8 + 8) / step);
  });
  return least;
}

dist::Link measure_link(int ranks) {
  LOCKSTEP_CHECK(ranks >= 2 && ranks <= 64, "[simulate] expected 2 to 64 ranks to measure a network with, got ", ranks);
  dist::Link link;
  dist::spawn(ranks,
              [&](int rank) {
                std::vector<std::pair<double, double>> points;
                for (const int64_t count : {1 << 10, 1 << 14, 1 << 18, 1 << 21}) {
                  const Tensor x = ones({count}, {.device = cpu});
                  for (int i = 0; i < 3; ++i) dist::world().all_reduce(x);
                  std::vector<double> times;
                  for (int i = 0; i < (count > 1 << 18 ? 7 : 25); ++i) {
                    const auto begin = Clock::now();
                    dist::world().all_reduce(x, {.op = dist::ReduceOp::mean});
                    times.push_back(since(begin));
                  }
                  std::nth_element(times.begin(), times.begin() + long(times.size() / 2), times.end());
                  points.emplace_back(2. * (ranks - 1) / ranks * double(count) * 4, times[times.size() / 2]);
                }
                if (rank == 0) link = fit(points, 2. * (ranks - 1));
              },
              {.transport = "shm"});
  return link;
}

data::Json settings_of(const std::vector<RankTrace>& traces) {
  LOCKSTEP_CHECK(!traces.empty(), "[simulate] expected traces of a run, got none");
  const auto settings = traces[0].notes.find("settings"), how = traces[0].notes.find("parallel");
  LOCKSTEP_CHECK(settings != traces[0].notes.end() && how != traces[0].notes.end(), "[simulate] ", traces[0].path,
                 ": expected the trace of a training program without a pipeline, whose settings are in it; found none");
  return settings->second;
}

StepCosts costs_of_traces(const std::vector<RankTrace>& traces, const engine::ModelShape& run, int64_t batch,
                          const engine::ModelShape& model, int64_t micro_batch) {
  settings_of(traces);  // there are some
  const double tokens = double(batch) * double(run.context);
  const auto how = traces[0].notes.find("parallel");
  std::vector<double> forward, backward, optimizer;
  for (const RankTrace& t : traces) {
    std::vector<double>* last = nullptr;
    double until = 0;
    for (const Event& e : t.events) {  // by begin, so what is in one comes after it
      if (e.row != 0) continue;
      const bool waits = e.category == trace::Category::wait || e.category == trace::Category::data;
      if (waits && last && e.begin < until) last->back() -= e.seconds;  // that is not computing
      if (e.category == trace::Category::forward) last = &forward;
      else if (e.category == trace::Category::backward) last = &backward;
      else if (e.category == trace::Category::optimizer) last = &optimizer;
      else continue;
      last->push_back(e.seconds);
      until = e.end();
    }
  }
  LOCKSTEP_CHECK(forward.size() > 2 && backward.size() > 2 && !optimizer.empty(),
                 "[simulate] expected a trace of three micro-batches or more, got ", forward.size(), " forwards and ",
                 backward.size(), " backwards");
  const auto median = [](std::vector<double>& all) {
    std::nth_element(all.begin(), all.begin() + long(all.size() / 2), all.end());
    return all[all.size() / 2];
  };
  const double forward_rate = run.forward_flops() * tokens / median(forward),
               backward_rate = 2 * run.forward_flops() * tokens / median(backward);
  const double zero = how->second.at("zero", traces[0].path).as_number(),
               n = how->second.at("ranks", traces[0].path).as_number();
  StepCosts c = costs_of_flops(model, micro_batch, forward_rate,
                               double(run.numel()) / (zero > 0 ? n : 1) * (2 * 8 + 8) / median(optimizer));
  for (double& seconds : c.backward) seconds *= forward_rate / backward_rate;
  c.origin = str("trace of ", traces.size(), traces.size() == 1 ? " rank" : " ranks");
  return c;
}

dist::Link link_of_traces(const std::vector<RankTrace>& traces) {
  // A collective takes at least what the rank that came last sees.
  std::map<std::pair<int, double>, double> least;  // by ranks and bytes
  for (const RankTrace& t : traces) {
    for (const Event& e : t.events) {
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
