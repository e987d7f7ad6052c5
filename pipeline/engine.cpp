// Executes a schedule: act() is one switch over its actions. The actions of a forward and of a backward, in order:
//
//   receive_activation ─▶ forward ─▶ send_activation      sends are queued on the links, and receives start early, so
//   receive_gradient ─▶ backward ─▶ send_gradient         messages overlap with computation
#include "pipeline/engine.h"

#include <algorithm>

#include "dist/control.h"
#include "pipeline/link.h"
#include "tensor/graph.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "trace/trace.h"

namespace lockstep::pipeline {

PipelineEngine::~PipelineEngine() = default;

/// Executes this rank's list of actions. `all` has the lists of all ranks.
void PipelineEngine::run(const Lists& all) {
  expect(all);
  losses_.assign(size_t(now_.micro_batches), {});
  waited_ = ran_ = 0;
  const auto watch = stopwatch(ran_);
  took_.reset();
  const auto found = std::find_if(lanes_.begin(), lanes_.end(), [](auto& l) { return l.second.link->on_streams(); });
  if (found != lanes_.end() && !Graph::is_recording()) {
    const Device here = found->second.link->device();
    took_.emplace(Event(here, true), Event(here, true)).first.record();
  }
  parallel::run(all[size_t(rank_)], [this](const StepAction& a) { act(a); });
  {
    const auto flushing = stopwatch(waited_);
    for (auto& [road, lane] : lanes_) lane.link->flush();
  }
  if (took_) took_->second.record();
  drop_flights();
}

void PipelineEngine::act(const StepAction& a) {
  if (a.what > Do::add) return;  // the engine's caller performs the later actions
  const int stage = stage_of(a);
  const trace::Scope slot(name_of(a.what), trace::Category::pipeline,
                          {{"micro_batch", a.micro_batch}, {"stage", stage}, {"training", now_.training}},
                          a.micro_batch);
  Flight& f = flights_[{a.chunk, a.micro_batch}];
  switch (a.what) {
    case Do::draw: return draw(a, f);
    case Do::receive_activation: return receive_activation(a, f);
    case Do::forward: return forward(a, f);
    case Do::send_activation: return send_activation(a, f);
    case Do::receive_gradient: f.gradients = fetch({Road::gradient, stage + 1, a.micro_batch}); return;
    case Do::backward_weight: return backward_weight(f);
    case Do::send_gradient:
      return send({Road::gradient, stage, a.micro_batch}, stage - 1, std::exchange(f.gradients, {}));
    case Do::add: return add(a, f);
    default: return backward(a, f);
  }
}

// --- computations ---

void PipelineEngine::forward(const StepAction& a, Flight& f) {
  // Context-parallel ranks hold different tokens of a micro-batch, so each has a random stream of its own.
  set_random_step(step_, uint64_t(number(a.micro_batch) * plan_.cp + at_.cp), f.random_call);
  f.outputs = module_->forward(size_t(a.chunk), f.inputs);
  if (stage_of(a) + 1 == schedule_.virtual_stages()) {
    const Variable loss = (*now_.loss)(f.outputs, std::exchange(f.targets, {}));
    LOCKSTEP_CHECK(loss.defined() && loss.numel() == now_.values && is_floating(loss.dtype()),
                   "[pipeline] expected the loss to be ",
                   now_.values == 1 ? "one floating number" : str(now_.values, " floating numbers"), ", got ",
                   loss.defined() ? str(loss.dtype(), " ", loss.shape()) : "nothing", "; change the loss function");
    losses_[size_t(a.micro_batch)] = loss.tensor();
    f.outputs = {now_.scale && *now_.scale ? (*now_.scale)(loss) : loss};
  }
  f.random_call = random_state().call;
  if (!now_.training) f.inputs.clear();
}

/// Draws the data of a micro-batch. The ranks of the first and the last stage do so, with the same random state. The
/// first stage uses the inputs, the last stage the targets; a rank may hold both.
void PipelineEngine::draw(const StepAction& a, Flight& f) {
  const RandomScope here;
  const int64_t number = this->number(a.micro_batch);
  set_random_step(step_, uint64_t(number));
  std::optional<Sample> next = (*now_.data)(number);
  LOCKSTEP_CHECK(next, "[pipeline] the data ended before micro-batch ", number, " of step ", step_, ", expected ",
                 int64_t(now_.micro_batches) * plan_.dp, " micro-batches; give more data, or take fewer steps");
  if (stage_of(a) == 0) {
    f.inputs.assign(next->inputs.begin(), next->inputs.end());
    f.random_call = random_state().call;
  }
  const auto [rank, chunk] = schedule_.place(schedule_.virtual_stages() - 1);
  if (rank == rank_) flights_[{chunk, a.micro_batch}].targets = std::move(next->targets);
}

void PipelineEngine::backward(const StepAction& a, Flight& f) {
  const bool last = stage_of(a) + 1 == schedule_.virtual_stages(), full = a.what == Do::backward;
  const auto is_data = [](const Variable& v) { return !v.requires_grad(); };
  auto before = full ? take_tied(a) : std::vector<std::pair<Variable, Tensor>>();
  Variable root;
  if (last && before.empty()) {
    root = f.outputs[0];
  } else {
    if (last) f.gradients = {ones_like(f.outputs[0].tensor())};
    else std::erase_if(f.outputs, is_data);
    for (auto& [leaf, gradient] : before) {
      f.outputs.push_back(leaf);
      f.gradients.push_back(std::move(gradient));
    }
    root = joined(f.outputs, std::exchange(f.gradients, {}));
  }
  f.outputs.clear();
  std::vector<Variable> inputs = std::exchange(f.inputs, {});
  std::erase_if(inputs, is_data);
  if (full) root.backward();
  else f.split.emplace(root, inputs);
  for (Variable& v : inputs) {
    f.gradients.push_back(v.grad().defined() ? v.grad() : zeros_like(v.tensor()));
    v.clear_grad();
  }
}

// Computes a micro-batch's weight gradients, except those of tied parameters: add() computes these from the gradients
// of a later stage. Until then the flight keeps the gradients, so that the next micro-batch does not add to them.
void PipelineEngine::backward_weight(Flight& f) {
  std::vector<Variable> tied;
  for (const Tie& tie : ties_) tied.insert(tied.end(), tie.parameters.begin(), tie.parameters.end());
  f.split->finish_but(tied);
  for (Variable& p : module_->parameters()) {
    if (!p.grad().defined()) continue;
    f.late.emplace_back(p, p.grad());
    p.clear_grad();
  }
}

// --- a step ---

/// Runs fn. An exception of one rank is raised on all ranks.
template <class Fn> auto PipelineEngine::together(const Fn& fn) {
  try {
    return fn();
  } catch (const std::exception& e) {
    abandon();
    const bool others_know = dynamic_cast<const dist::DistError*>(&e);
    if (others_know || Graph::is_recording()) throw;  // the code that records informs the other ranks
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
    now_ = {.data = &data, .micro_batches = r.micro_batches, .training = true, .scale = &scale, .loss = &loss_};
    const std::pair seconds(ran_, waited_);
    run(step_list_);
    if (Graph::is_recording()) std::tie(ran_, waited_) = seconds;  // a recording executes nothing
    reduce();
    ++step_;
    return std::exchange(losses_, {});
  });
}

double PipelineEngine::mean_loss(const std::vector<Tensor>& all) {
  return together([&] {
    now_ = {.micro_batches = schedule_.request.micro_batches, .training = true};
    double sum = 0;
    const std::vector<double> losses = gather_losses(all);
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
    now_ = {.data = &data, .micro_batches = micro_batches, .loss = measure ? &measure : &loss_, .values = values};
    run(evaluation_of(schedule_, micro_batches));
    return gather_losses(std::exchange(losses_, {}));
  });
}

}  // namespace lockstep::pipeline
