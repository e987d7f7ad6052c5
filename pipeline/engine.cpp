// The executor: one switch over the actions of a schedule.
//
//   receive_activation ─▶ forward ─▶ send_activation          sends are queued on the links' threads and receives are posted ahead,
//   receive_gradient ─▶ backward ─▶ send_gradient             so the ranks compute meanwhile
#include "pipeline/engine.h"

#include <algorithm>

#include "pipeline/engine_impl.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "trace/trace.h"

namespace lockstep::pipeline {

using Impl = Engine::Impl;

namespace {

constexpr int both_ends = 2;

/// Random numbers of the program are where they were.
struct RandomScope {
  RandomState before = random_state();
  ~RandomScope() { set_random_state(before); }
};

}  // namespace

void Impl::run(const std::vector<Action>& actions, bool training) {
  waited = ran = 0;
  const Stopwatch watch(ran);
  for (const Action& a : actions) {
    const trace::Scope slot(name_of(a.what), trace::Category::pipeline, {{"micro_batch", a.micro_batch}, {"stage", schedule.virtual_stage(rank, a.chunk)}, {"training", training}}, a.micro_batch);
    switch (a.what) {
      case What::receive_activation: receive_activation(a, training); break;
      case What::forward: forward(a); break;
      case What::send_activation: send_activation(a, training); break;
      case What::receive_gradient: receive_gradient(a); break;
      case What::backward:
      case What::backward_input: backward(a); break;
      case What::backward_weight: backward_weight(a); break;
      case What::send_gradient: send_gradient(a); break;
    }
  }
  collect_late(0);
  {
    const Stopwatch flushing(waited);
    for (auto& [road, link] : links) link->flush();
  }
  flights.clear();
  samples.clear();
}

// --- computations ---

void Impl::forward(const Action& a) {
  const int stage = schedule.virtual_stage(rank, a.chunk);
  const bool last = stage + 1 == virtual_stages;
  Flight& f = flights[{a.chunk, a.micro_batch}];
  set_random_step(step, random_number(a.micro_batch));
  if (stage == 0) {
    const Held& one = sample(a.micro_batch);
    f.inputs.assign(one.sample.inputs.begin(), one.sample.inputs.end());
    f.random_call = one.random_call;
  } else if (!remote(stage - 1)) {  // the turn of a V, or one rank
    Flight& before = flights.at({schedule.place(stage - 1).chunk, a.micro_batch});
    std::vector<Tensor> tensors;
    for (const Variable& v : before.outputs) tensors.push_back(v.tensor());
    f.inputs = leaves_of(tensors, Shapes::of(before.outputs, 0));
    f.random_call = before.random_call;
    if (!training) before.outputs.clear();
  }
  RandomState random = random_state();
  random.call = f.random_call;
  set_random_state(random);
  f.outputs = module->forward(size_t(a.chunk), f.inputs);
  if (last) {
    const Variable loss = loss_of(f.outputs, sample(a.micro_batch).sample.targets);
    LOCKSTEP_CHECK(loss.defined() && loss.numel() == 1 && is_floating(loss.dtype()), "[pipeline] expected the loss to be one floating number, got ",
                   loss.defined() ? str(loss.dtype(), " ", loss.shape()) : "nothing");
    losses[a.micro_batch] = loss.tensor();
    f.outputs = {scale && *scale ? (*scale)(loss) : loss};
  }
  f.random_call = random_state().call;
  if (!training) f.inputs.clear();
  // The sample goes when both ends have had it.
  if (stage == 0 || last) {
    int& left = samples.at(a.micro_batch).left;
    left -= (stage == 0) + last;
    if (left == 0) samples.erase(a.micro_batch);
  }
}

/// Both ends ask for it, and draw the same random numbers for it.
const Impl::Held& Impl::sample(int64_t micro_batch) {
  const auto found = samples.find(micro_batch);
  if (found != samples.end()) return found->second;
  const RandomScope here;
  set_random_step(step, uint64_t(number(int(micro_batch))));
  std::optional<Sample> next = (*data)(number(int(micro_batch)));
  if (!next) fail(str("[pipeline] the data ended before micro-batch ", number(int(micro_batch)), " of step ", step, ", expected ", int64_t(count) * dp_size, " micro-batches"));
  const bool first = schedule.place(0).rank == rank, last = schedule.place(virtual_stages - 1).rank == rank;
  return samples.emplace(micro_batch, Held{std::move(*next), first && last ? both_ends : 1, random_state().call}).first->second;
}

void Impl::backward(const Action& a) {
  const int stage = schedule.virtual_stage(rank, a.chunk);
  const bool last = stage + 1 == virtual_stages, whole = a.what == What::backward;
  Flight& f = flight(a);
  if (whole) collect_late(0);  // in the order of the micro-batches
  auto before = whole ? take_tied(a) : std::vector<std::pair<Variable, Tensor>>();
  Variable root;
  if (last && before.empty()) {
    root = f.outputs[0];
  } else {
    std::vector<Variable> roots;
    std::vector<Tensor> gradients;
    size_t next = 0;
    for (const Variable& v : f.outputs) {
      if (!v.requires_grad()) continue;
      roots.push_back(v);
      gradients.push_back(last ? ones_like(v.tensor()) : std::move(f.gradients.at(next++)));
    }
    for (auto& [leaf, gradient] : before) {
      roots.push_back(leaf);
      gradients.push_back(std::move(gradient));
    }
    before.clear();
    f.gradients.clear();
    root = joined(roots, std::move(gradients));
  }
  f.outputs.clear();
  std::vector<Variable> first;
  for (const Variable& v : f.inputs) if (stage > 0 && v.requires_grad()) first.push_back(v);
  if (whole) root.backward();
  else f.split.emplace(root, first);
  root = {};
  f.gradients.clear();
  for (Variable& v : first) {
    f.gradients.push_back(v.grad().defined() ? v.grad() : zeros_like(v.tensor()));
    v.clear_grad();
  }
  f.inputs.clear();
  first.clear();
  if (stage > 0 && !remote(stage - 1)) flights.at({schedule.place(stage - 1).chunk, a.micro_batch}).gradients = std::move(f.gradients);
  if (whole) collect(a);
}

// Gradients of tied layers, which come before this stage's own, may come long after the rest: the stage that makes them takes its time with
// weights, too. So this stage's own wait for them, and it does not.
void Impl::backward_weight(const Action& a) {
  std::vector<Variable> tied;
  for (const Tie& tie : ties) tied.insert(tied.end(), tie.parameters.begin(), tie.parameters.end());
  flight(a).split->finish_but(tied);
  Late& now = late.emplace_back(Late{a, {}});
  for (Variable& p : module->parameters()) {
    if (!p.grad().defined()) continue;
    now.gradients.emplace_back(p, p.grad());
    p.clear_grad();
  }
  constexpr size_t most_late = 2;  // each holds the gradients of a chunk
  collect_late(most_late);
}

// --- a step ---

void Impl::fail_everywhere(const std::string& message) const {
  if (!world) fail(message);
  throw world->control().report(dist::Fault::rank_failed, world->world_rank(world->rank()), message);
}

/// Of all micro-batches; and everybody's times come along.
std::vector<double> Impl::gather_losses() {
  const size_t n = size_t(count) * size_t(dp_size), ranks = world ? size_t(world->size()) : 1, me = world ? size_t(world->rank()) : 0;
  std::vector<double> all(n + 2 * ranks);
  const bool counts = !mesh || mesh->at().tp == 0;  // slices all have them; parts of a sequence have as many tokens each
  for (const auto& [micro_batch, loss] : losses) if (counts) all[size_t(number(int(micro_batch)))] = loss.item() / cp_size;
  losses.clear();
  all[n + 2 * me] = ran;
  all[n + 2 * me + 1] = waited;
  if (world) {
    const Tensor sum = Tensor::from(all, {int64_t(all.size())});  // zeros but on one rank (with cp, on so many): exact
    world->all_reduce(sum, {.tag = "pipeline losses"});
    all = sum.to_vector<double>();
  }
  if (training) {
    std::map<int, double> longest;  // of each pipeline
    const auto copy = [&](size_t rank) { return mesh ? parallel::coordinates_of(mesh->plan(), int(rank)).dp : 0; };
    for (size_t r = 0; r < ranks; ++r) longest[copy(r)] = std::max(longest[copy(r)], all[n + 2 * r]);
    times.clear();
    for (size_t r = 0; r < ranks; ++r) {
      const double busy = all[n + 2 * r] - all[n + 2 * r + 1];
      times.push_back({busy, longest[copy(r)] - busy});
    }
  }
  all.resize(n);
  return all;
}

/// Runs fn; what this rank throws is what all ranks raise.
template <class Fn>
auto Impl::together(const Fn& fn) {
  try {
    return fn();
  } catch (const dist::DistError&) {
    abandon();
    throw;
  } catch (const std::exception& e) {
    abandon();
    fail_everywhere(e.what());
  }
}

Engine::Engine(std::vector<LayerSpec> layers, Options options, Loss loss, dist::ProcessGroup* world)
    : impl_(std::make_unique<Impl>(std::move(layers), std::move(options), std::move(loss), world ? world : dist::is_initialized() ? &dist::world() : nullptr)) {}
Engine::~Engine() = default;

double Engine::train_batch(const Data& data, const std::function<Variable(const Variable&)>& scale) {
  Impl& m = *impl_;
  LOCKSTEP_CHECK(data, "[pipeline] expected a function that gives micro-batches, got none");
  for (auto& p : m.module->named_parameters()) {
    LOCKSTEP_CHECK(!p.variable.grad().defined(), "[pipeline] ", p.name, " still has the gradient of the last step; call the optimizer's zero_grad() after step()");
  }
  if (m.world) m.world->control().set_step(m.step);
  const RandomScope random;
  const Request& r = m.schedule.request;
  const trace::Scope scope("train_batch", trace::Category::pipeline, {{"schedule", m.options.custom ? "custom" : name_of(r.kind)}, {"stages", r.stages}, {"micro_batches", r.micro_batches}, {"chunks", r.chunks}, {"rank", m.rank}, {"copy", m.dp_rank}});
  return m.together([&] {
    m.data = &data;
    m.scale = &scale;
    m.count = m.schedule.request.micro_batches;
    m.training = true;
    m.expect(m.schedule.ranks);
    m.run(m.schedule.ranks[size_t(m.rank)], true);
    m.reduce();
    double sum = 0;
    const std::vector<double> losses = m.gather_losses();
    for (const double loss : losses) sum += loss;  // in their order, whoever had them
    ++m.step;
    return sum / double(losses.size());
  });
}

std::vector<double> Engine::eval_batch(const Data& data, int micro_batches) {
  Impl& m = *impl_;
  LOCKSTEP_CHECK(data, "[pipeline] expected a function that gives micro-batches, got none");
  LOCKSTEP_CHECK(micro_batches >= 1, "[pipeline] expected 1 micro-batch or more, got ", micro_batches);
  const RandomScope random;
  const NoGrad no_grad;
  struct Mode {
    explicit Mode(nn::Module& module) : module(module), before(module.is_training()) { module.eval(); }
    ~Mode() { module.train(before); }
    nn::Module& module;
    const bool before;
  } const mode(*m.module);
  return m.together([&] {
    m.data = &data;
    m.scale = nullptr;
    m.count = micro_batches;
    m.training = false;
    // Groups of as many micro-batches as there are ranks pass the chunks in turn.
    std::vector<std::vector<Action>> all(m.schedule.ranks.size());
    const int p = int(all.size());
    for (int rank = 0; rank < p; ++rank) {
      for (int first = 0; first < micro_batches; first += p) {
        for (int c = 0; c < m.schedule.request.chunks; ++c) {
          const int stage = m.schedule.virtual_stage(rank, c);
          const bool before = stage > 0 && m.schedule.place(stage - 1).rank != rank, after = stage + 1 < m.virtual_stages && m.schedule.place(stage + 1).rank != rank;
          for (int i = first; i < std::min(first + p, micro_batches); ++i) {
            if (before) all[size_t(rank)].push_back({What::receive_activation, i, c});
            all[size_t(rank)].push_back({What::forward, i, c});
            if (after) all[size_t(rank)].push_back({What::send_activation, i, c});
          }
        }
      }
    }
    m.expect(all);
    m.run(all[size_t(m.rank)], false);
    return m.gather_losses();
  });
}

nn::Module& Engine::module() { return *impl_->module; }
void Engine::set_step(uint64_t step) { impl_->step = step; }
const Schedule& Engine::schedule() const { return impl_->schedule; }
const std::vector<int>& Engine::bounds() const { return impl_->bounds; }
int Engine::stage() const { return impl_->rank; }
bool Engine::is_first() const { return impl_->schedule.place(0).rank == impl_->rank; }
bool Engine::is_last() const { return impl_->schedule.place(impl_->virtual_stages - 1).rank == impl_->rank; }
dist::ProcessGroup* Engine::data_parallel() const { return impl_->copies; }
dist::ProcessGroup* Engine::pipeline() const { return impl_->pp; }
const parallel::Mesh* Engine::mesh() const { return impl_->mesh; }
const std::vector<RankTime>& Engine::times() const { return impl_->times; }
double Engine::bubble() const {
  double idle = 0, all = 0;
  for (const RankTime& t : impl_->times) idle += t.idle, all += t.busy + t.idle;
  return all > 0 ? idle / all : 0;
}
std::vector<Engine::Place> Engine::places() const {
  const Impl& m = *impl_;
  std::vector<Place> all;
  for (const auto& p : m.module->numbered_parameters()) {
    bool leads = true;
    for (const Impl::Tie& tie : m.ties) if (tie.key == p.key) leads = m.schedule.place(tie.stages[0]).rank == m.rank;
    all.push_back({p.name, p.layer, p.place, leads});
  }
  return all;
}
int64_t Engine::bytes_sent() const {
  int64_t bytes = 0;
  for (const auto& group : impl_->link_groups) bytes += group->traffic().sent;
  return bytes;
}

}  // namespace lockstep::pipeline
