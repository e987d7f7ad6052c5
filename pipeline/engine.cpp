// Executes a schedule: run() is one switch over its actions. The actions of a forward and of a backward, in order:
//
//   receive_activation ─▶ forward ─▶ send_activation      sends are queued on the links, and receives start early, so
//   receive_gradient ─▶ backward ─▶ send_gradient         messages overlap with computation
#include "pipeline/engine.h"

#include <algorithm>

#include "base/at_end.h"
#include "parallel/agreement.h"
#include "tensor/graph.h"
#include "tensor/ops.h"
#include "tensor/random_scope.h"
#include "trace/trace.h"

namespace lockstep::pipeline {

Engine::~Engine() = default;
Engine::Flight& Engine::flight(const Action& a) { return flights_.at({a.chunk, a.micro_batch}); }
Link& Engine::link(Road road, int from, int to) { return *links_.at({road, from, to}); }

/// Executes this rank's list of actions. `all` has the lists of all ranks.
void Engine::run(const std::vector<std::vector<Action>>& all) {
  expect(all);
  waited_ = ran_ = 0;
  const auto watch = stopwatch(ran_);
  took_.reset();
  const auto device = std::find_if(links_.begin(), links_.end(), [](auto& l) { return l.second->on_streams(); });
  if (device != links_.end() && !Graph::is_recording()) {
    const Device here = device->second->device();
    took_.emplace(Event(here, true), Event(here, true)).first.record();
  }
  for (const Action& a : all[size_t(rank_)]) {
    const trace::Scope slot(name_of(a.what), trace::Category::pipeline,
                            {{"micro_batch", a.micro_batch},
                             {"stage", schedule_.virtual_stage(rank_, a.chunk)},
                             {"training", now_.training}},
                            a.micro_batch);
    switch (a.what) {
      case What::receive_activation: receive_activation(a); break;
      case What::forward: forward(a); break;
      case What::send_activation: send_activation(a); break;
      case What::receive_gradient: receive_gradient(a); break;
      case What::backward:
      case What::backward_input: backward(a); break;
      case What::backward_weight: backward_weight(a); break;
      case What::send_gradient: send_gradient(a); break;
    }
  }
  collect_late(0);
  {
    const auto flushing = stopwatch(waited_);
    for (auto& [road, link] : links_) link->flush();
  }
  if (took_) took_->second.record();
  flights_.clear();
  samples_.clear();
}

// --- computations ---

void Engine::forward(const Action& a) {
  const int stage = schedule_.virtual_stage(rank_, a.chunk);
  const bool last = stage + 1 == virtual_stages_;
  Flight& f = flights_[{a.chunk, a.micro_batch}];
  set_random_step(step_, random_number(a.micro_batch));
  if (stage == 0) {
    const Held& one = sample(a.micro_batch);
    f.inputs.assign(one.sample.inputs.begin(), one.sample.inputs.end());
    f.random_call = one.random_call;
  } else if (!remote(stage - 1)) {  // both stages on this rank: the turn of a V, or a single rank
    Flight& before = flights_.at({schedule_.place(stage - 1).chunk, a.micro_batch});
    f.inputs = Shapes::of(before.outputs, 0).leaves(tensors_of(before.outputs));
    f.random_call = before.random_call;
    if (!now_.training) before.outputs.clear();
  }
  RandomState random = random_state();
  random.call = f.random_call;
  set_random_state(random);
  f.outputs = module_->forward(size_t(a.chunk), f.inputs);
  if (last) {
    const Variable loss = (now_.measure ? *now_.measure : loss_)(f.outputs, sample(a.micro_batch).sample.targets);
    LOCKSTEP_CHECK(loss.defined() && loss.numel() == now_.values && is_floating(loss.dtype()),
                   "[pipeline] expected the loss to be ",
                   now_.values == 1 ? "one floating number" : str(now_.values, " floating numbers"), ", got ",
                   loss.defined() ? str(loss.dtype(), " ", loss.shape()) : "nothing");
    losses_[a.micro_batch] = loss.tensor();
    f.outputs = {now_.scale && *now_.scale ? (*now_.scale)(loss) : loss};
  }
  f.random_call = random_state().call;
  if (!now_.training) f.inputs.clear();
  // Only the first and the last stage use the sample. A rank may hold both, and frees the sample after both have run.
  if (stage == 0 || last) {
    int& left = samples_.at(a.micro_batch).left;
    left -= (stage == 0) + last;
    if (left == 0) samples_.erase(a.micro_batch);
  }
}

/// Returns the data of a micro-batch. The first and the last stage call it, with the same random state.
const Engine::Held& Engine::sample(int64_t micro_batch) {
  const auto found = samples_.find(micro_batch);
  if (found != samples_.end()) return found->second;
  const RandomScope here;
  set_random_step(step_, uint64_t(number(micro_batch)));
  std::optional<Sample> next = (*now_.data)(number(micro_batch));
  if (!next)
    fail(str("[pipeline] the data ended before micro-batch ", number(micro_batch), " of step ", step_, ", expected ",
             int64_t(now_.micro_batches) * plan_.dp, " micro-batches; give more data, or take fewer steps"));
  const int ends = is_first() && is_last() ? 2 : 1;
  return samples_.emplace(micro_batch, Held{std::move(*next), ends, random_state().call}).first->second;
}

void Engine::backward(const Action& a) {
  const int stage = schedule_.virtual_stage(rank_, a.chunk);
  const bool last = stage + 1 == virtual_stages_, whole = a.what == What::backward;
  Flight& f = flight(a);
  if (whole) collect_late(0);  // adds gradients in the order of the micro-batches
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
  for (const Variable& v : f.inputs)
    if (stage > 0 && v.requires_grad()) first.push_back(v);
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
  if (stage > 0 && !remote(stage - 1))
    flights_.at({schedule_.place(stage - 1).chunk, a.micro_batch}).gradients = std::move(f.gradients);
  if (whole) collect(a);
}

// Computes a micro-batch's weight gradients. Those of tied parameters need gradients from a later stage, which may
// arrive much later, as that stage postpones them too. This stage stores its gradients until then, instead of blocking.
void Engine::backward_weight(const Action& a) {
  std::vector<Variable> tied;
  for (const Tie& tie : ties_) tied.insert(tied.end(), tie.parameters.begin(), tie.parameters.end());
  flight(a).split->finish_but(tied);
  Late& now = late_.emplace_back(Late{a, {}});
  for (Variable& p : module_->parameters()) {
    if (!p.grad().defined()) continue;
    now.gradients.emplace_back(p, p.grad());
    p.clear_grad();
  }
  constexpr size_t most_late = 2;  // each Late holds the gradients of a chunk
  collect_late(most_late);
}

// --- a step ---

/// Runs fn. An exception of one rank is raised on all ranks.
template <class Fn> auto Engine::together(const Fn& fn) {
  try {
    return fn();
  } catch (const dist::DistError&) {
    abandon();
    throw;
  } catch (const std::exception& e) {
    abandon();
    if (Graph::is_recording()) throw;  // the code that records informs the other ranks
    if (!world_) fail(e.what());
    parallel::fail_everywhere(*world_, e.what());
  }
}

double Engine::train_batch(const Data& data, const std::function<Variable(const Variable&)>& scale) {
  return mean_loss(forward_backward(data, scale));
}

std::vector<Tensor> Engine::forward_backward(const Data& data, const std::function<Variable(const Variable&)>& scale) {
  LOCKSTEP_CHECK(data, "[pipeline] expected a function that returns micro-batches, got none");
  const AtEnd drops([frozen = train_frozen()] {
    for (Variable p : frozen) p.requires_grad_(false).clear_grad();
  });
  if (world_) world_->control().set_step(step_);
  const RandomScope random;
  const Request& r = schedule_.request;
  const trace::Scope scope("train_batch", trace::Category::pipeline,
                           {{"schedule", options_.custom ? "custom" : name_of(r.kind)},
                            {"stages", r.stages},
                            {"micro_batches", r.micro_batches},
                            {"chunks", r.chunks},
                            {"rank", rank_},
                            {"copy", at_.dp}});
  return together([&] {
    now_ = {.data = &data, .micro_batches = r.micro_batches, .training = true, .scale = &scale};
    const std::pair seconds(ran_, waited_);
    run(schedule_.ranks);
    if (Graph::is_recording()) std::tie(ran_, waited_) = seconds;  // a recording executes nothing
    reduce();
    ++step_;
    std::vector<Tensor> losses(size_t(r.micro_batches));
    for (const auto& [micro_batch, loss] : std::exchange(losses_, {})) losses[size_t(micro_batch)] = loss;
    return losses;
  });
}

double Engine::mean_loss(const std::vector<Tensor>& all) {
  return together([&] {
    now_ = {.micro_batches = schedule_.request.micro_batches, .training = true};
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].defined()) losses_[int64_t(i)] = all[i];
    double sum = 0;
    const std::vector<double> losses = gather_losses();
    for (const double loss : losses) sum += loss;  // losses are in the order of micro-batches, not of ranks
    return sum / double(losses.size());
  });
}

std::vector<double> Engine::eval_batch(const Data& data, int micro_batches, const Loss& measure, int values) {
  LOCKSTEP_CHECK(data, "[pipeline] expected a function that returns micro-batches, got none");
  LOCKSTEP_CHECK(micro_batches >= 1, "[pipeline] expected 1 micro-batch or more, got ", micro_batches);
  const RandomScope random;
  const NoGrad no_grad;
  const AtEnd trains([this, before = module_->is_training()] { module_->train(before); });
  module_->eval();
  return together([&] {
    now_ = {.data = &data, .micro_batches = micro_batches, .measure = measure ? &measure : nullptr, .values = values};
    run(forwards_of(schedule_, micro_batches));
    return gather_losses();
  });
}

}  // namespace lockstep::pipeline
