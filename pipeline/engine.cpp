// Executes a schedule: act() is one switch over its actions. The actions of a forward and of a backward, in order:
//
//   receive_activation ─▶ forward ─▶ send_activation      sends are queued on the links, and receives start early, so
//   receive_gradient ─▶ backward ─▶ send_gradient         messages overlap with computation
#include "pipeline/engine.h"

#include <algorithm>

#include "dist/control.h"
#include "parallel/agreement.h"
#include "pipeline/link.h"
#include "tensor/graph.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "trace/trace.h"

namespace lockstep::pipeline {

PipelineEngine::~PipelineEngine() = default;
PipelineEngine::Flight& PipelineEngine::flight(const StepAction& a) { return flights_.at({a.chunk, a.micro_batch}); }
Link& PipelineEngine::link(Road road, int from, int to) { return *links_.at({road, from, to}); }

/// Executes this rank's list of actions. `all` has the lists of all ranks.
void PipelineEngine::run(const Lists& all) {
  expect(all);
  waited_ = ran_ = 0;
  const auto watch = stopwatch(ran_);
  took_.reset();
  const auto device = std::find_if(links_.begin(), links_.end(), [](auto& l) { return l.second->on_streams(); });
  if (device != links_.end() && !Graph::is_recording()) {
    const Device here = device->second->device();
    took_.emplace(Event(here, true), Event(here, true)).first.record();
  }
  parallel::run(all[size_t(rank_)], [this](const StepAction& a) { act(a); });
  {
    const auto flushing = stopwatch(waited_);
    for (auto& [road, link] : links_) link->flush();
  }
  if (took_) took_->second.record();
  flights_.clear();
  samples_.clear();
}

void PipelineEngine::act(const StepAction& a) {
  if (a.what > Do::add) return;  // the engine's caller performs the later actions
  const trace::Scope slot(
      name_of(a.what), trace::Category::pipeline,
      {{"micro_batch", a.micro_batch}, {"stage", schedule_.virtual_stage(rank_, a.chunk)}, {"training", now_.training}},
      a.micro_batch);
  switch (a.what) {
    case Do::draw: return draw(a);
    case Do::receive_activation: return receive_activation(a);
    case Do::forward: return forward(a);
    case Do::send_activation: return send_activation(a);
    case Do::receive_gradient: return receive_gradient(a);
    case Do::backward_weight: return backward_weight(a);
    case Do::send_gradient: return send_gradient(a);
    case Do::add: return add(a);
    default: return backward(a);
  }
}

// --- computations ---

void PipelineEngine::forward(const StepAction& a) {
  const int stage = schedule_.virtual_stage(rank_, a.chunk);
  const bool last = stage + 1 == virtual_stages_;
  Flight& f = flights_[{a.chunk, a.micro_batch}];
  set_random_step(step_, random_number(a.micro_batch));
  if (stage == 0) {
    const Held& one = samples_.at(a.micro_batch);
    f.inputs.assign(one.sample.inputs.begin(), one.sample.inputs.end());
    f.random_call = one.random_call;
  }
  RandomState random = random_state();
  random.call = f.random_call;
  set_random_state(random);
  f.outputs = module_->forward(size_t(a.chunk), f.inputs);
  if (last) {
    const Variable loss = (now_.measure ? *now_.measure : loss_)(f.outputs, samples_.at(a.micro_batch).sample.targets);
    LOCKSTEP_CHECK(loss.defined() && loss.numel() == now_.values && is_floating(loss.dtype()),
                   "[pipeline] expected the loss to be ",
                   now_.values == 1 ? "one floating number" : str(now_.values, " floating numbers"), ", got ",
                   loss.defined() ? str(loss.dtype(), " ", loss.shape()) : "nothing", "; change the loss function");
    losses_[a.micro_batch] = loss.tensor();
    f.outputs = {now_.scale && *now_.scale ? (*now_.scale)(loss) : loss};
  }
  f.random_call = random_state().call;
  if (!now_.training) f.inputs.clear();
  // Only the first and the last stage use the sample. A rank may hold both.
  if (last || (stage == 0 && !is_last())) samples_.erase(a.micro_batch);
}

/// Draws the data of a micro-batch. The ranks of the first and the last stage do so, with the same random state.
void PipelineEngine::draw(const StepAction& a) {
  const RandomScope here;
  const int64_t number = this->number(a.micro_batch);
  set_random_step(step_, uint64_t(number));
  std::optional<Sample> next = (*now_.data)(number);
  if (!next)
    fail(str("[pipeline] the data ended before micro-batch ", number, " of step ", step_, ", expected ",
             int64_t(now_.micro_batches) * plan_.dp, " micro-batches; give more data, or take fewer steps"));
  samples_.emplace(a.micro_batch, Held{std::move(*next), random_state().call});
}

void PipelineEngine::backward(const StepAction& a) {
  const int stage = schedule_.virtual_stage(rank_, a.chunk);
  const bool last = stage + 1 == virtual_stages_, full = a.what == Do::backward;
  Flight& f = flight(a);
  auto before = full ? take_tied(a) : std::vector<std::pair<Variable, Tensor>>();
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
  if (full) root.backward();
  else f.split.emplace(root, first);
  root = {};
  f.gradients.clear();
  for (Variable& v : first) {
    f.gradients.push_back(v.grad().defined() ? v.grad() : zeros_like(v.tensor()));
    v.clear_grad();
  }
  f.inputs.clear();
}

// Computes a micro-batch's weight gradients, except those of tied parameters: add() computes these from the gradients
// of a later stage. Until then the flight keeps the gradients, so that the next micro-batch does not add to them.
void PipelineEngine::backward_weight(const StepAction& a) {
  std::vector<Variable> tied;
  for (const Tie& tie : ties_) tied.insert(tied.end(), tie.parameters.begin(), tie.parameters.end());
  flight(a).split->finish_but(tied);
  for (Variable& p : module_->parameters()) {
    if (!p.grad().defined()) continue;
    flight(a).late.emplace_back(p, p.grad());
    p.clear_grad();
  }
}

// --- a step ---

/// Runs fn. An exception of one rank is raised on all ranks.
template <class Fn> auto PipelineEngine::together(const Fn& fn) {
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

double PipelineEngine::train_batch(const Data& data, const std::function<Variable(const Variable&)>& scale) {
  return mean_loss(forward_backward(data, scale));
}

std::vector<Tensor> PipelineEngine::forward_backward(const Data& data,
                                                     const std::function<Variable(const Variable&)>& scale) {
  LOCKSTEP_CHECK(data, "[pipeline] expected a function that returns micro-batches, got none; pass one");
  const AtEnd drops([frozen = train_frozen()] {
    for (Variable p : frozen) p.requires_grad_(false).clear_grad();
  });
  if (world_) world_->control().set_step(step_);
  const RandomScope random;
  const PipelineRequest& r = schedule_.request;
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
    run(step_list_);
    if (Graph::is_recording()) std::tie(ran_, waited_) = seconds;  // a recording executes nothing
    reduce();
    ++step_;
    std::vector<Tensor> losses(size_t(r.micro_batches));
    for (const auto& [micro_batch, loss] : std::exchange(losses_, {})) losses[size_t(micro_batch)] = loss;
    return losses;
  });
}

double PipelineEngine::mean_loss(const std::vector<Tensor>& all) {
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

std::vector<double> PipelineEngine::eval_batch(const Data& data, int micro_batches, const Loss& measure, int values) {
  LOCKSTEP_CHECK(data, "[pipeline] expected a function that returns micro-batches, got none; pass one");
  LOCKSTEP_CHECK(micro_batches >= 1, "[pipeline] expected 1 micro-batch or more, got ", micro_batches);
  const RandomScope random;
  const NoGrad no_grad;
  const AtEnd trains([this, before = module_->is_training()] { module_->train(before); });
  module_->eval();
  return together([&] {
    now_ = {.data = &data, .micro_batches = micro_batches, .measure = measure ? &measure : nullptr, .values = values};
    run(evaluation_of(schedule_, micro_batches));
    return gather_losses();
  });
}

}  // namespace lockstep::pipeline
