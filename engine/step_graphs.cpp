// Records and replays steps: see step_graphs.h.
#include "engine/step_graphs.h"

#include <algorithm>
#include <exception>
#include <ranges>
#include <sstream>
#include <string_view>

#include "autograd/tape.h"
#include "dist/fingerprint.h"
#include "dist/numbers.h"
#include "dist/texts.h"
#include "engine/impl.h"
#include "tensor/ops.h"
#include "trace/trace.h"

namespace lockstep::engine {
namespace {

/// Returns a key: steps with the same key can replay the same recording. The key has the shapes and dtypes of the data
/// and, for each micro-batch, the number of calls of the random generator that loading its data made (for the first
/// micro-batch only if `in_stages`).
std::string shapes_of(const std::vector<MicroBatch>& step, bool in_stages) {
  std::string key = step[0].tokens > 0 ? "sum" : "mean";
  for (const MicroBatch& one : step) {
    if (in_stages || &one != &step[0]) key += str("; ", one.calls);
    for (const Tensor* x : tensors_of(one.sample)) key += str(" ", x->dtype(), x->shape());
  }
  return key;
}

/// A hash that is 0 for the empty text.
int64_t hash_of(std::string_view text) { return text.empty() ? 0 : int64_t(dist::hash_text(text)); }

}  // namespace

/// The process groups whose collectives a step calls. The list has the same order on all ranks.
std::vector<dist::ProcessGroup*> StepGraphs::groups() const {
  std::vector<dist::ProcessGroup*> all{m_.group};
  if (m_.context_ranks > 1) all.push_back(m_.sharers);
  if (m_.part)
    for (dist::ProcessGroup* group : m_.part->groups()) all.push_back(group);
  std::erase_if(all, [](const dist::ProcessGroup* group) { return group->size() == 1; });
  return all;
}

constexpr std::string_view on_cpu = "the model is on the CPU";

std::string StepGraphs::reason_against_all() const {
  if (m_.model.parameters().at(0).device().is_cpu()) return std::string(on_cpu);
  if (!wanted_) return "they are turned off";
  for (const dist::ProcessGroup* group : groups())
    if (std::string_view(group->device_engine()) != "nccl")
      return str("tensors of ", group->size(), " ranks go through the host's memory");
  if (m_.exchange) return str(m_.optimizers[0]->name(), " exchanges gradients itself");
  for (const Participating& one : m_.participants)
    if (const std::string reason = one.participant->against_graphs(true); !reason.empty()) return reason;
  if (m_.config.wall_clock_breakdown) return "wall_clock_breakdown measures its parts";
  return "";
}

void StepGraphs::agree() {
  never_ = reason_against_all();
  if (m_.part) never_ = agreed_reason(never_);
}

/// Returns a reason to run a step without a graph: the model has hooks, which a replay would not call, or a parameter
/// has a gradient already. Returns "" if neither holds. `state` receives everything that must not change between a
/// recording and its replay: addresses of parameters and buffers, the parameters that are trained, and the modules in
/// training mode.
std::string StepGraphs::who_listens(std::vector<uint64_t>& state) const {
  const auto place = [&](const Tensor& x) {  // without memory (ZeRO 3 frees it), take the address of the storage object
    const void* const at = x.storage()->is_empty() ? static_cast<void*>(x.storage().get()) : x.raw_data();
    state.push_back(uint64_t(reinterpret_cast<uintptr_t>(at)));
  };
  for (const auto& [name, module] : m_.model.named_modules()) {
    state.push_back(module->is_training());
    const int own = m_.zero->hooks_on(*module) + (module == &m_.model ? int(m_.module_hooks.size()) : 0);
    if (module->hook_count() != own || (module->is_wrapped() && !m_.checkpoints && m_.plan.tp == 1))
      return str("calls of ", name.empty() ? "the model" : name, " have hooks");
  }
  for (const nn::NamedBuffer& b : m_.model.named_buffers()) place(b.tensor);
  for (const nn::NamedParameter& p : m_.model.named_parameters()) {
    place(p.variable.tensor());
    state.push_back(p.variable.requires_grad());
    if (!p.variable.requires_grad()) continue;
    auto* const leaf = static_cast<Leaf*>(p.variable.impl()->node.get());
    const auto& hooks = leaf->outputs()[0].hooks;
    // Without the user's hooks, a parameter has one gradient hook (ZeRO's) and two on_complete hooks (ZeRO's and the
    // engine's). With pipeline stages or tensor parallelism it has none.
    const size_t own = m_.part ? 0 : 1;
    if ((hooks ? hooks->size() : 0) != own || leaf->on_complete.size() != 2 * own)
      return str("the gradient of ", p.name, " has hooks");
    if (leaf->grad.defined()) return str("there is a gradient of ", p.name, " already");
  }
  return "";
}

std::string StepGraphs::why_not(const std::vector<MicroBatch>& step, bool has_metric,
                                std::vector<uint64_t>& state) const {
  const Device device = m_.model.parameters().at(0).device();
  if (!m_.is_between_steps()) return "train_batch() ends a step that backward() has begun";
  if (int64_t(step.size()) < m_.accumulation) return "a micro-batch shares memory with other data";
  if (m_.wants_metric() && !has_metric) return "there is no metric";  // step() will throw the Error about it
  if (m_.unsplit.forward) return "the forward is not the model's own";
  for (const Participating& one : m_.participants)
    if (const std::string reason = one.participant->against_graphs(false); !reason.empty()) return reason;
  if (trace::on()) return "a trace notes every operation";
  if (AnomalyMode::enabled()) return "AnomalyMode looks at every result";
  for (const MicroBatch& one : step) {
    if (one.tokens == 0) return "a micro-batch has no targets";
    for (const Tensor* x : tensors_of(one.sample)) {
      if (!x->defined() || !(x->device() == device)) return str("a micro-batch is not on ", device);
      if (!x->is_contiguous()) return "a micro-batch is not row-major";
    }
  }
  return who_listens(state);
}

/// Called if a step runs without a graph: prints the reason if it is a new one. Returns false.
bool StepGraphs::decline(const std::string& reason) {
  last_reason_ = reason;
  if (said_.insert(reason).second) m_.say("steps run without graphs: " + reason);
  return false;
}

std::string StepGraphs::status() const {
  if (!never_.empty()) return "none: " + never_;
  if (replays_ == 0 && !last_reason_.empty()) return "none: " + last_reason_;
  const auto shapes = std::count_if(recorded_.begin(), recorded_.end(),
                                    [](const auto& entry) { return entry.second.graph.has_value(); });
  return str(shapes, shapes == 1 ? " shape" : " shapes", " recorded, ", replays_, " of ", steps_, " steps replayed",
             last_reason_.empty() ? "" : "; the others: " + last_reason_);
}

bool StepGraphs::are_wanted() {
  if (never_.empty()) return ++steps_, true;
  return wanted_ && never_ != on_cpu && decline(never_);
}

/// The reason of the first rank that has a reason against a graph; "" if no rank has one.
std::string StepGraphs::agreed_reason(const std::string& mine) const {
  const std::vector<std::string> all = dist::gather_texts(mine, m_.world, "why a step is no graph");
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& one) { return !one.empty(); });
  if (first == all.end()) return "";
  const bool same = std::all_of(all.begin(), all.end(), [&](const std::string& one) { return one == *first; });
  return same ? *first : str("rank ", m_.world.world_rank(int(first - all.begin())), ": ", *first);
}

/// The first difference between the collectives that the ranks of a group have recorded; "" if there is none.
std::string StepGraphs::other_calls(const std::vector<std::string>& mine, dist::ProcessGroup& ranks) const {
  std::string text;
  for (const std::string& call : mine) text += call + "\n";
  std::vector<std::istringstream> all;
  for (const std::string& one : dist::gather_texts(text, ranks, "collectives of a graph")) all.emplace_back(one);
  std::vector<std::string> lines(all.size());
  for (int number = 1;; ++number) {
    for (size_t r = 0; r < all.size(); ++r)
      if (!std::getline(all[r], lines[r])) lines[r] = "nothing";
    for (size_t r = 1; r < lines.size(); ++r)
      if (lines[r] != lines[0])
        return str("collective ", number, " of it is ", lines[0], " on rank ", ranks.world_rank(0), ", ", lines[r],
                   " on rank ", ranks.world_rank(int(r)));
    if (lines[0] == "nothing") return "";
  }
}

bool StepGraphs::run(const std::vector<MicroBatch>& step, std::optional<double> metric) {
  m_.zero->release();
  std::vector<uint64_t> state;
  const std::string mine = why_not(step, metric.has_value(), state);
  int64_t own_tokens = 0;
  for (const MicroBatch& one : step) own_tokens += std::max<int64_t>(one.tokens, 0);
  const int64_t shapes = mine.empty() ? hash_of(shapes_of(step, m_.plan.pp > 1)) : 0,
                model = hash_of({reinterpret_cast<const char*>(state.data()), state.size() * sizeof(uint64_t)});
  const std::vector<int64_t> votes = dist::all_gathered<int64_t>({hash_of(mine), shapes, model, own_tokens}, m_.world,
                                                                 {.tag = "whether a step is a graph"});
  std::vector<int64_t> reasons, key, models;
  m_.tokens = 0;
  for (size_t at = 0; at < votes.size(); at += 4) {
    reasons.push_back(votes[at]);
    key.push_back(votes[at + 1]);
    models.push_back(votes[at + 2]);
    m_.tokens += double(votes[at + 3]);
  }
  if (reasons != std::vector<int64_t>(reasons.size())) {  // at least one rank has a reason
    const auto [agreed, fresh] = agreed_.try_emplace(reasons);
    if (fresh) agreed->second = agreed_reason(mine);
    return decline(agreed->second);
  }
  if (!recorded_.count(key) && recorded_.size() >= limit)
    return decline(str("only the first ", limit, " shapes of steps are recorded"));
  Recorded& one = recorded_[key];
  if (one.refused) return false;
  if (one.models != models) {
    const int moves = one.moves + !one.models.empty();
    one = Recorded{.models = std::move(models), .moves = moves, .refused = moves > 3};
    return one.refused && decline("parameters, buffers or modes of the model change between steps");
  }
  m_.begin_random(step[0].number, step[0].calls);
  return (one.graph || record(one, step)) && replay(one, step, metric);
}

bool StepGraphs::record(Recorded& to, const std::vector<MicroBatch>& step) {
  const Device device = m_.model.parameters().at(0).device();
  const auto number = [&] { return empty({}, {.dtype = f64, .device = device}); };
  Recorded made{.models = to.models, .moves = to.moves, .step = step, .factor = number()};
  for (MicroBatch& one : made.step) {
    for (Tensor* x : tensors_of(one.sample)) *x = empty_like(*x);
    made.tokens.push_back(one.tokens > 0 ? number() : Tensor());
  }
  const AtEnd undoes([this, before = m_.micro_steps] {
    m_.now = {};
    m_.forget();
    m_.micro_steps = before;
  });
  std::string reason;
  for (dist::ProcessGroup* group : groups())
    made.calls.emplace_back(group, group->take_recorded());  // those of the program's own graphs: replaced below
  if (m_.part) m_.part->prepare_capture();
  try {
    m_.now = {.graph = &made};
    made.graph.emplace(device).record([&] { m_.train({}, made.step, parallel::Mode::record); });
    for (const Micro& one : m_.micros) made.losses.push_back(one.loss);
    made.update = m_.zero->captured();
  } catch (const std::exception& error) { reason = error.what(); }
  for (auto& [group, calls] : made.calls) calls = group->take_recorded();
  reason = agreed_reason(reason);
  if (reason.empty()) {
    for (const auto& [group, calls] : made.calls)  // all groups, even after a difference: other_calls() is collective
      if (const std::string found = other_calls(calls, *group); reason.empty()) reason = found;
    reason = agreed_reason(reason);
  }
  to.refused = !reason.empty();
  if (to.refused) return decline("a step cannot be recorded: " + reason);
  to = std::move(made);
  return true;
}

bool StepGraphs::replay(Recorded& recorded, const std::vector<MicroBatch>& step, std::optional<double> metric) {
  const AtEnd over([this] { m_.now = {}; });
  m_.now = {.graph = &recorded, .metric = metric, .start = steady_seconds()};
  m_.set_factor(m_.own_factor());
  if (!m_.zero->can_replay(m_.step_options())) {
    m_.factor.reset();
    return decline("gradients would be scaled by a factor above 1");
  }
  for (size_t i = 0; i < step.size(); ++i) {
    const auto to = tensors_of(recorded.step[i].sample);
    const auto from = tensors_of(step[i].sample);
    for (size_t k = 0; k < to.size(); ++k) to[k]->copy_(*from[k]);
    if (step[i].tokens > 0) recorded.tokens[i].fill_(double(step[i].tokens));
    m_.micros.push_back({recorded.losses[i], step[i].tokens});
  }
  recorded.factor.fill_(*m_.factor);
  m_.micro_steps += m_.accumulation;
  m_.forwards = 0;  // drop forwards that the caller ran before
  ++replays_;
  try {
    m_.guarded([&] {
      m_.begin_update();
      m_.zero->before_replay(m_.now.options, recorded.update);
      std::function<void()> launch = [&] { recorded.graph->replay(); };
      for (const auto& [group, calls] : std::views::reverse(recorded.calls))
        launch = [to = group, &what = calls, next = std::move(launch)] { to->replay(what, next); };
      launch();
    });
    m_.train({}, {}, parallel::Mode::replay);
  } catch (...) {
    drop();  // NCCL cannot end a communicator while a graph contains its collectives
    throw;
  }
  return true;
}

}  // namespace lockstep::engine
