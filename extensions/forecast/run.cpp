// Computes the report's figures from a run's traces. See run.h.
#include "extensions/forecast/run.h"

#include <cmath>

#include "base/check.h"
#include "pipeline/simulate.h"
#include "zero/partition.h"

namespace lockstep::report {
namespace {

using data::Json;
using trace::Category;

constexpr double max_slots = 1 << 22;  // limit for simulating a schedule

StepPhase part_of(const TraceEvent& e) {
  switch (e.category) {
    case Category::forward: return StepPhase::forward;
    case Category::backward: return StepPhase::backward;
    case Category::optimizer: return StepPhase::optimizer;
    case Category::data: return StepPhase::data;
    case Category::wait:
    case Category::collective: return StepPhase::communication;
    case Category::evaluation: return StepPhase::evaluation;
    case Category::pipeline:
      if (e.name.starts_with("forward")) return StepPhase::forward;
      if (e.name.starts_with("backward of the weights") || e.name.starts_with("adding")) return StepPhase::weights;
      if (e.name.starts_with("backward")) return StepPhase::backward;
      if (e.name.starts_with("drawing")) return StepPhase::data;
      return e.name.starts_with("sending") || e.name.starts_with("receiving") ? StepPhase::communication
                                                                              : StepPhase::other;
    default: return StepPhase::other;
  }
}

std::vector<const TraceEvent*> steps_of(const RankTrace& t) {
  std::vector<const TraceEvent*> all;
  for (const TraceEvent& e : t.events)
    if (e.category == Category::step) all.push_back(&e);
  return all;
}

/// The steps of a rank without the first one, which is warm-up, unless it is the only one.
std::vector<const TraceEvent*> measured_steps(const RankTrace& t) {
  std::vector<const TraceEvent*> all = steps_of(t);
  if (all.size() > 1) all.erase(all.begin());
  return all;
}

std::vector<const TraceEvent*> within(const RankTrace& t, double begin, double end, bool main) {
  std::vector<const TraceEvent*> all;
  for (auto e = std::ranges::lower_bound(t.events, begin, {}, &TraceEvent::begin);
       e != t.events.end() && e->begin < end; ++e)
    if ((e->row == 0) == main && e->category != Category::step) all.push_back(&*e);
  return all;
}

/// The evaluations among a main thread's events, which are sorted by begin; not those within another one.
std::vector<const TraceEvent*> evaluations_among(const std::vector<const TraceEvent*>& events) {
  std::vector<const TraceEvent*> all;
  for (const TraceEvent* e : events)
    if (e->category == Category::evaluation && (all.empty() || e->begin >= all.back()->end())) all.push_back(e);
  return all;
}

void add_evaluations(const RunFiles& run, Analysis& a) {
  for (const RankTrace& t : run.traces) {
    const auto all = evaluations_among(within(t, -INFINITY, INFINITY, true));
    double seconds = 0;
    for (const TraceEvent* e : all) seconds += e->seconds;
    a.evaluations.count = std::max(a.evaluations.count, int64_t(all.size()));
    a.evaluations.seconds = std::max(a.evaluations.seconds, seconds);
  }
}

void add_steps(const RunFiles& run, Analysis& a) {
  std::map<int64_t, std::pair<double, size_t>> numbered;  // of each step: seconds on the slowest rank, number of ranks
  for (const RankTrace& t : run.traces) {
    for (const TraceEvent* e : steps_of(t)) {
      auto& [longest, ranks] = numbered[e->integer("step")];
      longest = std::max(longest, e->seconds), ++ranks;
    }
  }
  std::vector<std::pair<double, int64_t>> full;  // steps that all ranks have, without warm-up
  for (const auto& [number, step] : numbered) {
    a.steps.push_back(step.first);
    if (step.second == run.traces.size() && (number != numbered.begin()->first || numbered.size() == 1))
      full.emplace_back(step.first, number);
  }
  if (full.empty()) return;
  std::ranges::sort(full);
  std::tie(a.median_step, a.timeline_step) = full[(full.size() - 1) / 2];
  for (const RankTrace& t : run.traces) {
    const auto steps = steps_by_part(t);
    for (const auto& step : steps)
      for (size_t p = 0; p < parts; ++p) a.split[t.rank][p] += step[p] / double(steps.size());
    for (const TraceEvent* step : measured_steps(t)) {
      const double begin = step->begin, end = step->end();
      if (step->integer("step") != a.timeline_step) continue;
      RankStep& rank_step = a.timeline[t.rank] = {begin, end, flatten(within(t, begin, end, true), begin, end), {}};
      for (const TraceEvent* e : within(t, begin, end, false))
        if (e->category == Category::collective)
          rank_step.collectives.push_back({StepPhase::communication, e->begin, e->end(), e->text("call")});
    }
  }
}

/// Adds up what main threads wait for. A wait within another one, such as for the collective of a gather, is left out,
/// and so are those of evaluations.
void add_waits(const RunFiles& run, Analysis& a) {
  std::map<std::string, double> seconds;
  double steps = 0;
  for (const RankTrace& t : run.traces) {
    for (const TraceEvent* step : measured_steps(t)) {
      ++steps;
      double until = step->begin;
      for (const TraceEvent* e : within(t, step->begin, step->end(), true)) {
        const bool waits = e->category == Category::wait;
        if (e->begin < until || (!waits && e->category != Category::evaluation)) continue;
        until = e->end();
        if (waits) seconds[e->name] += e->seconds;
      }
    }
  }
  for (const auto& [name, sum] : seconds) a.waits.emplace_back(name, sum / steps);
  std::ranges::stable_sort(a.waits, std::greater(), &std::pair<std::string, double>::second);
}

void add_traffic(const RunFiles& run, Analysis& a) {
  std::map<std::string, CollectiveTraffic> rows;
  double steps = 0;
  for (const RankTrace& t : run.traces) {
    for (const TraceEvent* step : measured_steps(t)) {
      ++steps;
      const auto evaluations = evaluations_among(within(t, step->begin, step->end(), true));
      const auto is_of_training = [&](const TraceEvent* e) {
        return std::ranges::none_of(
            evaluations, [&](const TraceEvent* other) { return other->begin <= e->begin && e->begin < other->end(); });
      };
      for (const TraceEvent* e : within(t, step->begin, step->end(), false)) {
        if (e->category != Category::collective || !is_of_training(e)) continue;
        CollectiveTraffic& row = rows[e->name + ", " + e->text("group")];
        ++row.calls;
        row.bytes += e->number("bytes"), row.sent += e->number("sent"), row.seconds += e->seconds;
      }
    }
  }
  if (steps == 0) return;
  for (auto& [name, row] : rows) {
    row.collective = name;
    for (double* value : {&row.calls, &row.bytes, &row.sent, &row.seconds}) *value /= steps;
    a.sent += row.sent;
    a.traffic.push_back(row);
  }
  std::ranges::stable_sort(a.traffic, std::greater(), &CollectiveTraffic::sent);
  if (const Json* parallel = run.note("parallel")) {
    const double n = number_of(*parallel, "ranks", 1), bytes = number_of(*parallel, "parameter_bytes"),
                 passes = number_of(*parallel, "micro_batches", 1);
    const int stage = int(number_of(*parallel, "zero", -1));
    // As in `lockstep plan`: from ZeRO stage 2 on, gradients are reduced after every micro-batch; in stage 3,
    // parameters are also gathered for each forward and each backward.
    const double times = stage <= 1 ? 2 : stage == 2 ? passes + 1 : 3 * passes;
    const char* text = stage <= 1 ? "2Ψ(n-1)/n" : stage == 2 ? "(A+1)Ψ(n-1)/n" : "3AΨ(n-1)/n";
    if (n > 1)
      a.sent_formula = Formula{times * bytes * (n - 1) / n, str(text, ", Ψ = ", int64_t(bytes), " bytes, n = ", int(n),
                                                                stage >= 2 ? str(", A = ", int(passes)) : "")};
  } else if (a.pipeline && a.pipeline->replicas == 1 && run.settings.find("width")) {
    // A micro-batch crosses every boundary between stages twice: forward and backward. Computes mean bytes per rank.
    const PipelineFigures& p = *a.pipeline;
    const double one =
        number_of(run.settings, "batch") * number_of(run.settings, "context") * number_of(run.settings, "width") * 4;
    const double crossings = 2. * (double(p.stages) * p.chunks - 1) * p.micro_batches / p.stages;
    a.sent_formula = Formula{crossings * one, "2(p·v-1)m·b·T·C·4/p"};
  }
}

void add_memory(const RunFiles& run, Analysis& a) {
  std::map<std::string, double> peak_bytes;
  double processes = 0, together = 1;
  for (const RankTrace& t : run.traces) {
    if (t.samples("memory").empty()) continue;
    if (const Json* facts = t.note("run")) together = std::max(1., number_of(*facts, "ranks_in_process", 1));
    ++processes;
    std::map<std::string, double> here;
    for (const CounterSample& s : t.samples("memory"))
      for (const auto& [key, value] : s.values.as_object()) here[key] = std::max(here[key], value.as_number());
    // Samples miss memory that is allocated and freed between them. For activations and messages, uses recorded peaks.
    if (const auto& peaks = t.samples("memory, most so far"); !peaks.empty())
      for (const char* key : {"activation", "communication"}) here[key] = number_of(peaks.back().values, key);
    for (const auto& [key, value] : here) peak_bytes[key] += value;
  }
  if (processes == 0) return;
  std::map<std::string, Formula> formulas;
  if (const Json* parallel = run.note("parallel")) {
    const double n = number_of(*parallel, "ranks", 1), elements = std::max(1., number_of(*parallel, "parameters", 1)),
                 width = number_of(*parallel, "parameter_bytes") / elements;
    const int stage = std::max(0, int(number_of(*parallel, "zero", 0)));
    const bool adam = text_of(*parallel, "optimizer") == "Adam" || text_of(*parallel, "optimizer") == "AdamW";
    const zero::ModelState state = zero::model_state(stage, elements, int(n), width, 8);
    const auto share = [&](int from, const char* all) { return stage >= from ? str(all, "/n") : std::string(all); };
    formulas["parameter"] = {state.parameters, share(3, width == 4 ? "4Ψ" : "bΨ")};
    formulas["gradient"] = {state.gradients, share(2, width == 4 ? "4Ψ" : "bΨ")};
    if (adam) formulas["optimizer"] = {state.optimizer, share(1, "8Ψ")};
  }
  for (int c = 0; c < memory_categories; ++c) {
    const std::string name(lockstep::name_of(Memory(c)));
    MemoryRow row{.category = name, .measured = peak_bytes[name] / processes / together};
    if (const auto found = formulas.find(name); found != formulas.end()) row.formula = found->second;
    if (row.measured > 0 || row.formula) a.memory.push_back(row);
  }
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::string_view name_of(StepPhase part) {
  constexpr std::string_view names[] = {"forward", "backward",      "backward of weights", "optimizer",
                                        "data",    "communication", "evaluation",          "other"};
  static_assert(std::size(names) == parts);
  return names[size_t(part)];
}

std::vector<Interval> flatten(const std::vector<const TraceEvent*>& events, double begin, double end) {
  std::vector<Interval> out;
  const auto add = [&](StepPhase part, double from, double to, const std::string& name) {
    from = std::max(from, begin), to = std::min(to, end);
    if (to <= from) return;
    if (!out.empty() && out.back().part == part && out.back().name == name && from - out.back().end < 1e-12)
      out.back().end = to;
    else out.push_back({part, from, to, name});
  };
  std::vector<const TraceEvent*> open;
  double now = begin;
  const auto advance = [&](double to) {  // gives the time up to `to` to the innermost open event
    if (to > now)
      add(open.empty() ? StepPhase::other : part_of(*open.back()), now, to, open.empty() ? "" : open.back()->name);
    now = std::max(now, to);
  };
  const auto close = [&](double until) {  // ends the open events that end by then
    for (; !open.empty() && open.back()->end() <= until; open.pop_back()) advance(open.back()->end());
    advance(until);
  };
  for (const TraceEvent* e : events) {
    close(e->begin);
    if (!open.empty()) {
      const StepPhase inner = part_of(*e), outer = part_of(*open.back());
      if (inner == StepPhase::other || inner == outer || outer == StepPhase::evaluation)
        continue;  // adds no information to the enclosing event
    }
    open.push_back(e);
  }
  close(INFINITY);
  return out;
}

std::vector<std::array<double, parts>> steps_by_part(const RankTrace& t) {
  std::vector<std::array<double, parts>> all;
  for (const TraceEvent* step : measured_steps(t)) {
    auto& seconds = all.emplace_back();
    for (const Interval& one : flatten(within(t, step->begin, step->end(), true), step->begin, step->end()))
      seconds[size_t(one.part)] += one.end - one.begin;
  }
  return all;
}

std::optional<PipelineFigures> measure_pipeline(const std::vector<RankTrace>& traces) {
  PipelineFigures f;
  // Events by replica and batch. The n-th train_batch event of every rank of a replica belongs to the same batch.
  std::map<std::pair<int, size_t>, std::vector<std::pair<const RankTrace*, const TraceEvent*>>> batches;
  for (const RankTrace& t : traces) {
    size_t count = 0;
    for (const TraceEvent& e : t.events) {
      if (e.category != Category::pipeline || e.name != "train_batch") continue;
      f.schedule = e.text("schedule");
      const auto integer = [&](const char* key) { return int(e.integer(key, 1 << 20)); };
      f.stages = integer("stages"), f.micro_batches = integer("micro_batches"), f.chunks = integer("chunks");
      const int replica = integer("copy");
      f.replicas = std::max(f.replicas, replica + 1);
      batches[{replica, count++}].emplace_back(&t, &e);
    }
  }
  std::vector<double> idle;
  struct Sum {
    double seconds = 0, slots = 0;
  } forward, full, input, weight;  // a slot: one pass of a micro-batch through a chunk
  for (const auto& [key, ranks] : batches) {
    if (int(ranks.size()) != f.stages || (key.second == 0 && batches.size() > size_t(f.replicas)))
      continue;  // a rank is missing, or it is the warm-up batch
    double begin = INFINITY, end = -INFINITY, busy = 0;
    for (const auto& [t, batch] : ranks) {
      for (const TraceEvent* e : within(*t, batch->begin, batch->end(), true)) {
        if (e->category != Category::pipeline || e->name == "train_batch") continue;
        const StepPhase part = part_of(*e);
        if (part == StepPhase::communication || part == StepPhase::other) continue;
        begin = std::min(begin, e->begin), end = std::max(end, e->end());
        busy += e->seconds;
        if (part == StepPhase::data || e->name.starts_with("adding")) continue;  // not a pass through a chunk
        Sum& sum = part == StepPhase::forward           ? forward
                   : part == StepPhase::weights         ? weight
                   : e->name.starts_with("backward of") ? input
                                                        : full;
        sum.seconds += e->seconds, ++sum.slots;
      }
    }
    if (end <= begin) continue;
    idle.push_back(1 - busy / ((end - begin) * f.stages));
  }
  if (idle.empty()) return std::nullopt;
  f.measured = median(idle);
  const auto mean = [&](const Sum& sum) { return sum.slots > 0 ? sum.seconds / sum.slots * f.chunks : 0; };
  f.forward = mean(forward), f.input = mean(input), f.weight = mean(weight);
  if (f.weight == 0) f.input = mean(full);
  if (pipeline::is_kind(f.schedule) && double(f.stages) * f.micro_batches * f.chunks <= max_slots) {
    // The trace may time a backward only as a whole. Then half of it counts for inputs and half for weights: the bubble
    // does not depend on the split.
    const pipeline::StageCosts costs{.forward = f.forward,
                                     .input = f.weight > 0 ? f.input : f.input / 2,
                                     .weight = f.weight > 0 ? f.weight : f.input / 2};
    const pipeline::PipelineRequest request{pipeline::parse_kind(f.schedule), f.stages, f.micro_batches, f.chunks};
    const pipeline::BubbleFormula formula = pipeline::formula(request, costs);
    f.formula = formula.text, f.expected = formula.bubble;
    f.simulated = pipeline::simulate(pipeline::make_schedule(request), costs).bubble;
  }
  return f;
}

Analysis analyze(const RunFiles& run) {
  Analysis a;
  a.charts = curves_of(run);
  add_steps(run, a);
  add_evaluations(run, a);
  a.pipeline = measure_pipeline(run.traces);
  add_waits(run, a);
  add_traffic(run, a);
  add_memory(run, a);
  std::map<std::string, RankTrace::Total> operations;
  for (const RankTrace& t : run.traces)
    for (const auto& [name, total] : t.operations)
      operations[name].calls += total.calls, operations[name].seconds += total.seconds;
  a.operations.assign(operations.begin(), operations.end());
  std::ranges::stable_sort(a.operations, std::greater(), [](const auto& one) { return one.second.seconds; });
  const Json* const parallel = run.note("parallel");
  a.parameters = int64_t(std::clamp(number_of(parallel ? *parallel : run.settings, "parameters"), 0., 1e18));
  return a;
}

}  // namespace lockstep::report
