// Records and replays steps: see step_graphs.h.
#include "engine/step_graphs.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <string_view>

#include "autograd/ops.h"
#include "autograd/tape.h"
#include "dist/fingerprint.h"
#include "dist/numbers.h"
#include "dist/texts.h"
#include "engine/impl.h"
#include "tensor/ops.h"
#include "trace/trace.h"

namespace lockstep::engine {
namespace {

template <class Sample> auto tensors_of(Sample& sample) {
  std::vector<decltype(&sample.inputs[0])> all;
  for (auto& x : sample.inputs) all.push_back(&x);
  for (auto& x : sample.targets) all.push_back(&x);
  return all;
}

pipeline::Sample like(const pipeline::Sample& sample) {
  pipeline::Sample made;
  for (const Tensor& x : sample.inputs) made.inputs.push_back(empty_like(x));
  for (const Tensor& x : sample.targets) made.targets.push_back(empty_like(x));
  return made;
}

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

/// A hash that is 0 for the empty text only.
int64_t hash_of(std::string_view text) {
  return text.empty() ? 0 : int64_t(std::max<uint64_t>(dist::hash_text(text), 1));
}

}  // namespace

bool MicroBatch::keep() {
  for (Tensor* x : tensors_of(sample)) {
    if (!x->defined() || x->is_exclusive()) continue;
    if (!x->is_contiguous()) return false;
    *x = x->clone();
  }
  return true;
}

bool StepGraphs::is_shared() const { return m_.world.size() > 1; }

/// The process groups whose collectives a step calls. The list has the same order on all ranks.
std::vector<dist::ProcessGroup*> StepGraphs::groups() const {
  std::vector<dist::ProcessGroup*> all{m_.group};
  if (m_.sharing > 1) all.push_back(m_.sharers);
  if (m_.part)
    for (dist::ProcessGroup* group : m_.part->groups()) all.push_back(group);
  std::erase_if(all, [](const dist::ProcessGroup* group) { return group->size() == 1; });
  return all;
}

/// The first reason of a participant against graphs, or "". ever: against all graphs.
std::string StepGraphs::of_participants(bool ever) const {
  std::string reason;
  for (const Participating& one : m_.participants)
    if (reason.empty()) reason = one.participant->against_graphs(ever);
  return reason;
}

constexpr std::string_view on_cpu = "the model is on the CPU";

std::string StepGraphs::reason_against_all() const {
  if (m_.model.parameters().at(0).device().is_cpu()) return std::string(on_cpu);
  if (!wanted_) return "they are turned off";
  for (const dist::ProcessGroup* group : groups())
    if (std::string_view(group->device_engine()) != "nccl")
      return str("tensors of ", group->size(), " ranks go through the host's memory");
  if (m_.exchange) return str(m_.optimizers[0]->name(), " exchanges gradients itself");
  if (const std::string reason = of_participants(true); !reason.empty()) return reason;
  if (m_.config.wall_clock_breakdown) return "wall_clock_breakdown measures its parts";
  return "";
}

void StepGraphs::agree() {
  if (m_.part) never_ = agreed_reason(reason_against_all());
}

/// Returns the reason why this engine can record no step at all, or "" if it can. Computed at the first call.
const std::string& StepGraphs::why_never() {
  if (!never_) never_ = reason_against_all();
  return *never_;
}

/// Returns a reason to run a step without a graph: the model has hooks, which a replay would not call, or a parameter
/// has a gradient already. Returns "" if neither holds.
std::string StepGraphs::who_listens(const Model& model) const {
  for (const auto& [name, module] : model.modules) {
    const int own = m_.zero->hooks_on(*module) + (module == &m_.model ? int(m_.module_hooks.size()) : 0);
    if (module->hook_count() != own || (module->is_wrapped() && !m_.checkpoints && m_.plan.tp == 1))
      return str("calls of ", name.empty() ? "the model" : name, " have hooks");
  }
  for (const nn::NamedParameter& p : model.parameters) {
    if (!p.variable.requires_grad()) continue;
    auto* const leaf = static_cast<Leaf*>(p.variable.impl()->node.get());
    const auto& hooks = leaf->outputs()[0].hooks;
    // Without the user's hooks, a parameter has one gradient hook (ZeRO's) and two on_complete hooks (ZeRO, engine); a
    // part of a model has none.
    const size_t own = m_.part ? 0 : 1;
    if ((hooks ? hooks->size() : 0) != own || leaf->on_complete.size() != 2 * own)
      return str("the gradient of ", p.name, " has hooks");
    if (leaf->grad.defined()) return str("there is a gradient of ", p.name, " already");
  }
  return "";
}

std::string StepGraphs::why_not(const Model& model, const std::vector<MicroBatch>& step, bool has_metric) const {
  const Device device = model.parameters.at(0).variable.device();
  if (!may_draw()) return "train_batch() ends a step that backward() has begun";
  if (int64_t(step.size()) < m_.accumulation) return "a micro-batch shares memory with other data";
  if (m_.wants_metric() && !has_metric) return "there is no metric";  // step() will throw the Error about it
  if (m_.whole.forward) return "the forward is not the model's own";
  if (const std::string reason = of_participants(false); !reason.empty()) return reason;
  if (trace::on()) return "a trace notes every operation";
  if (AnomalyMode::enabled()) return "AnomalyMode looks at every result";
  for (const MicroBatch& one : step) {
    if (one.tokens == 0) return "a micro-batch has no targets";
    for (const Tensor* x : tensors_of(one.sample)) {
      if (!x->defined() || !(x->device() == device)) return str("a micro-batch is not on ", device);
      if (!x->is_contiguous()) return "a micro-batch is not row-major";
    }
  }
  return who_listens(model);
}

int64_t StepGraphs::Model::state() const {
  std::vector<uint64_t> state;
  const auto place = [&](const Tensor& x) {  // ZeRO 3 frees this memory
    const void* const at = x.storage()->is_empty() ? static_cast<void*>(x.storage().get()) : x.raw_data();
    state.push_back(uint64_t(reinterpret_cast<uintptr_t>(at)));
  };
  for (const nn::NamedParameter& p : parameters) {
    place(p.variable.tensor());
    state.push_back(p.variable.requires_grad());
  }
  for (const nn::NamedBuffer& b : buffers) place(b.tensor);
  for (const auto& [name, module] : modules) state.push_back(module->is_training());
  return hash_of({reinterpret_cast<const char*>(state.data()), state.size() * sizeof state[0]});
}

void StepGraphs::say_once(const std::string& reason) {
  last_reason_ = reason;
  if (said_.insert(reason).second) m_.say("steps run without graphs: " + reason);
}

std::string StepGraphs::status() {
  const auto shapes = std::count_if(recorded_.begin(), recorded_.end(),
                                    [](const auto& entry) { return entry.second.graph.has_value(); });
  if (!why_never().empty() || (replays_ == 0 && !last_reason_.empty()))
    return "none: " + (why_never().empty() ? last_reason_ : why_never());
  return str(shapes, shapes == 1 ? " shape" : " shapes", " recorded, ", replays_, " of ", steps_, " steps replayed",
             last_reason_.empty() ? "" : "; the others: " + last_reason_);
}

bool StepGraphs::are_wanted() {
  if (!why_never().empty()) {
    if (wanted_ && *never_ != on_cpu) say_once(*never_);
    return false;
  }
  ++steps_;
  return true;
}

/// True outside of no_sync() while no micro-batch of the coming step has run.
bool StepGraphs::may_draw() const {
  return m_.micros.empty() && m_.pending == 0 && m_.micro_steps % m_.accumulation == 0 && m_.no_sync_depth == 0;
}

std::vector<StepVote> StepGraphs::ask(const StepVote& mine, dist::ProcessGroup& ranks) const {
  if (ranks.size() == 1) return {mine};
  const std::vector<int64_t> all = dist::all_gathered<int64_t>({mine.reason, mine.shapes, mine.model, mine.tokens},
                                                               ranks, {.tag = "whether a step is a graph"});
  std::vector<StepVote> votes;
  for (size_t at = 0; at < all.size(); at += 4) votes.push_back({all[at], all[at + 1], all[at + 2], all[at + 3]});
  return votes;
}

/// The reason of the first rank that has a reason against a graph; "" if no rank has one.
std::string StepGraphs::agreed_reason(const std::string& mine, const std::vector<StepVote>& votes) {
  const auto first = std::find_if(votes.begin(), votes.end(), [](const StepVote& vote) { return vote.reason != 0; });
  if (first == votes.end()) return "";
  if (!is_shared()) return mine;
  const int rank = int(first - votes.begin());
  auto known = reasons_.find(first->reason);
  if (known == reasons_.end())
    known = reasons_.emplace(first->reason, dist::broadcast_text(mine, rank, m_.world, "why a step is no graph")).first;
  const bool all =
      std::all_of(votes.begin(), votes.end(), [&](const StepVote& v) { return v.reason == first->reason; });
  return all ? known->second : str("rank ", m_.world.world_rank(rank), ": ", known->second);
}

std::string StepGraphs::agreed_reason(const std::string& mine) {
  return agreed_reason(mine, ask({.reason = hash_of(mine)}, m_.world));
}

/// The first difference between the collectives that the ranks of a group have recorded; "" if there is none.
std::string StepGraphs::other_calls(const std::vector<std::string>& mine, dist::ProcessGroup& ranks) const {
  std::string text;
  for (const std::string& call : mine) text += call + "\n";
  const int64_t hash = hash_of(text);
  const std::vector<StepVote> votes = ask({.shapes = hash}, ranks);
  if (std::all_of(votes.begin(), votes.end(), [&](const StepVote& v) { return v.shapes == votes[0].shapes; }))
    return "";
  std::vector<std::istringstream> all;
  for (const std::string& one : dist::gather_texts(text, ranks, "collectives of a graph")) all.emplace_back(one);
  for (int number = 1;; ++number) {
    std::vector<std::string> lines(all.size());
    bool any = false;
    for (size_t r = 0; r < all.size(); ++r) {
      if (std::getline(all[r], lines[r])) any = true;
      else lines[r] = "nothing";
    }
    for (size_t r = 1; r < lines.size(); ++r)
      if (lines[r] != lines[0] || !any)
        return str("collective ", number, " of it is ", lines[0], " on rank ", ranks.world_rank(0), ", ", lines[r],
                   " on rank ", ranks.world_rank(int(r)));
  }
}

bool StepGraphs::run(const std::vector<MicroBatch>& step, std::optional<double> metric) {
  m_.zero->release();
  const Model model(m_.model);
  const std::string mine = why_not(model, step, metric.has_value());
  StepVote vote{.reason = hash_of(mine)};
  if (mine.empty()) {
    vote.shapes = hash_of(shapes_of(step, m_.plan.pp > 1));
    vote.model = model.state();
    for (const MicroBatch& one : step) vote.tokens += std::max<int64_t>(one.tokens, 0);
  }
  const std::vector<StepVote> votes = ask(vote, m_.world);
  if (const std::string reason = agreed_reason(mine, votes); !reason.empty()) {
    say_once(reason);
    return false;
  }
  std::vector<int64_t> key, models;
  tokens_ = 0;
  for (const StepVote& v : votes) {
    key.push_back(v.shapes);
    models.push_back(v.model);
    tokens_ += double(v.tokens);
  }
  auto found = recorded_.find(key);
  if (found == recorded_.end()) {
    if (recorded_.size() >= most) {
      say_once(str("only the first ", most, " shapes of steps are recorded"));
      return false;
    }
    found = recorded_.emplace(key, Recorded{}).first;
  }
  Recorded& one = found->second;
  if (one.refused) return false;
  if (one.models != models) {
    const int moves = one.moves + !one.models.empty();
    one = Recorded{.models = std::move(models), .moves = moves, .refused = moves > 3};
    if (one.refused) say_once("parameters, buffers or modes of the model change between steps");
    return false;
  }
  return (one.graph || record(one, step)) && replay(one, step, metric);
}

bool StepGraphs::record(Recorded& to, const std::vector<MicroBatch>& step) {
  const Device device = m_.model.parameters().at(0).device();
  const auto number = [&] { return empty({}, {.dtype = f64, .device = device}); };
  Recorded made{.models = to.models, .moves = to.moves, .factor = number()};
  for (const MicroBatch& one : step) {
    made.samples.push_back(like(one.sample));
    made.tokens.push_back(one.tokens > 0 ? number() : Tensor());
  }
  const AtEnd undoes([this, before = m_.micro_steps] {
    m_.forget();
    m_.micro_steps = before;
  });
  std::string reason;
  const std::vector<dist::ProcessGroup*> all = groups();
  for (dist::ProcessGroup* group : all) group->take_recorded();  // drop what others recorded
  if (m_.part) m_.part->prepare_capture();
  try {
    Graph graph(device);
    m_.begin_random(step[0].number, step[0].calls);
    graph.record([&] { step_on(made, step); });
    made.graph.emplace(std::move(graph));
  } catch (const std::exception& error) { reason = error.what(); }
  for (dist::ProcessGroup* group : all) made.calls.push_back(group->take_recorded());
  reason = agreed_reason(reason);
  if (reason.empty()) {
    for (size_t i = 0; i < all.size(); ++i)  // call it for all groups, even after a difference that only some ranks see
      if (const std::string found = other_calls(made.calls[i], *all[i]); reason.empty()) reason = found;
    reason = agreed_reason(reason);
  }
  if (!reason.empty()) {
    to.refused = true;
    say_once("a step cannot be recorded: " + reason);
    return false;
  }
  to = std::move(made);
  return true;
}

/// Runs a step of train_batch() that reads its data, loss factor and token counts from the tensors in `made`.
void StepGraphs::step_on(Recorded& made, const std::vector<MicroBatch>& step) {
  std::vector<MicroBatch> ahead = step;
  m_.tokens = 0;
  for (size_t i = 0; i < step.size(); ++i) {
    ahead[i].sample = made.samples[i];
    if (!m_.part) m_.tokens += double(std::max<int64_t>(step[i].tokens, 0));
  }
  const AtEnd over([this] { m_.now = {}; });
  m_.now = {.graph = &made};
  m_.train({}, std::move(ahead), parallel::Mode::record);
  for (const Micro& one : m_.micros) made.losses.push_back(one.loss);
  made.update = m_.zero->captured();
}

bool StepGraphs::replay(Recorded& recorded, const std::vector<MicroBatch>& step, std::optional<double> metric) {
  const AtEnd over([this] { m_.now = {}; });
  m_.now = {.graph = &recorded, .metric = metric, .start = steady_seconds()};
  m_.set_factor(m_.own_factor());
  m_.tokens = tokens_;
  if (!m_.zero->can_replay(m_.step_options())) {
    m_.factor.reset();
    say_once("gradients would be scaled by a factor above 1");
    return false;
  }
  for (size_t i = 0; i < step.size(); ++i) {
    const auto to = tensors_of(recorded.samples[i]);
    const auto from = tensors_of(step[i].sample);
    for (size_t k = 0; k < to.size(); ++k) to[k]->copy_(*from[k]);
    if (step[i].tokens > 0) recorded.tokens[i].fill_(double(step[i].tokens));
    m_.micros.push_back({recorded.losses[i], step[i].tokens});
  }
  recorded.factor.fill_(*m_.factor);
  m_.begin_random(step[0].number, step[0].calls);
  m_.micro_steps += m_.accumulation;
  m_.forwards = 0;  // drop forwards that the caller ran before
  ++replays_;
  try {
    m_.guarded([&] {
      m_.begin_update();
      m_.zero->before_replay(m_.now.options, recorded.update);
      std::function<void()> launch = [&] { recorded.graph->replay(); };
      const std::vector<dist::ProcessGroup*> all = groups();
      for (size_t i = all.size(); i-- > 0;)
        launch = [&, i, next = std::move(launch)] { all[i]->replay(recorded.calls[i], next); };
      launch();
    });
    std::vector<parallel::Action> list;
    parallel::add_tail(list, true);
    parallel::run(
        list, [this](const parallel::Action& a) { m_.act(a); }, parallel::Mode::replay);
  } catch (...) {
    drop();  // NCCL cannot end a communicator while a graph contains its collectives
    throw;
  }
  return true;
}

}  // namespace lockstep::engine
