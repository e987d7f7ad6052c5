// The executor: one switch over the actions of a schedule.
//
//   receive_activation ─▶ forward ─▶ send_activation          sends are queued on the links' threads and receives are
//   posted ahead, receive_gradient ─▶ backward ─▶ send_gradient             so the ranks compute meanwhile
#include "pipeline/engine.h"

#include <algorithm>

#include "parallel/agreement.h"
#include "pipeline/engine_impl.h"
#include "pipeline/scopes.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "trace/trace.h"

namespace lockstep::pipeline {

using Impl = Engine::Impl;

/// What each rank does, this one too.
void Impl::run(const std::vector<std::vector<Action>>& all) {
  expect(all);
  waited = ran = 0;
  const Stopwatch watch(ran);
  for (const Action& a : all[size_t(rank)]) {
    const trace::Scope slot(
        name_of(a.what), trace::Category::pipeline,
        {{"micro_batch", a.micro_batch}, {"stage", schedule.virtual_stage(rank, a.chunk)}, {"training", training}},
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
    const Variable loss = (measure ? *measure : loss_of)(f.outputs, sample(a.micro_batch).sample.targets);
    LOCKSTEP_CHECK(loss.defined() && loss.numel() == values && is_floating(loss.dtype()),
                   "[pipeline] expected the loss to be ",
                   values == 1 ? "one floating number" : str(values, " floating numbers"), ", got ",
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
  if (!next)
    fail(str("[pipeline] the data ended before micro-batch ", number(int(micro_batch)), " of step ", step,
             ", expected ", int64_t(count) * dp_size, " micro-batches"));
  const bool first = schedule.place(0).rank == rank, last = schedule.place(virtual_stages - 1).rank == rank;
  return samples.emplace(micro_batch, Held{std::move(*next), first && last ? 2 : 1, random_state().call}).first->second;
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
    flights.at({schedule.place(stage - 1).chunk, a.micro_batch}).gradients = std::move(f.gradients);
  if (whole) collect(a);
}

// Gradients of tied layers, which come before this stage's own, may come long after the rest: the stage that makes them
// takes its time with weights, too. So this stage's own wait for them, and it does not.
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

/// Runs fn; what this rank throws is what all ranks raise.
template <class Fn> auto Impl::together(const Fn& fn) {
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

double Engine::train_batch(const Data& data, const std::function<Variable(const Variable&)>& scale) {
  Impl& m = *impl_;
  LOCKSTEP_CHECK(data, "[pipeline] expected a function that gives micro-batches, got none");
  for (auto& p : m.module->named_parameters()) {
    LOCKSTEP_CHECK(!p.variable.grad().defined(), "[pipeline] ", p.name,
                   " still has the gradient of the last step; call the optimizer's zero_grad() after step()");
  }
  if (m.world) m.world->control().set_step(m.step);
  const RandomScope random;
  const Request& r = m.schedule.request;
  const trace::Scope scope("train_batch", trace::Category::pipeline,
                           {{"schedule", m.options.custom ? "custom" : name_of(r.kind)},
                            {"stages", r.stages},
                            {"micro_batches", r.micro_batches},
                            {"chunks", r.chunks},
                            {"rank", m.rank},
                            {"copy", m.dp_rank}});
  return m.together([&] {
    m.begin(data, m.schedule.request.micro_batches);
    m.scale = &scale;
    m.training = true;
    m.run(m.schedule.ranks);
    m.reduce();
    double sum = 0;
    const std::vector<double> losses = m.gather_losses();
    for (const double loss : losses) sum += loss;  // in their order, whoever had them
    ++m.step;
    return sum / double(losses.size());
  });
}

std::vector<double> Engine::eval_batch(const Data& data, int micro_batches, const Loss& measure, int values) {
  Impl& m = *impl_;
  LOCKSTEP_CHECK(data, "[pipeline] expected a function that gives micro-batches, got none");
  LOCKSTEP_CHECK(micro_batches >= 1, "[pipeline] expected 1 micro-batch or more, got ", micro_batches);
  const RandomScope random;
  const NoGrad no_grad;
  const EvalMode mode(*m.module);
  return m.together([&] {
    m.begin(data, micro_batches);
    m.measure = measure ? &measure : nullptr;
    m.values = values;
    m.run(forwards_of(m.schedule, micro_batches));
    return m.gather_losses();
  });
}

}  // namespace lockstep::pipeline
