// The exchanges of a stage: messages, gradients of tied parameters, losses and times. The schedule fixes the order of
// all messages, so a rank can start to receive the next message before it needs it.
#include <algorithm>
#include <cmath>

#include "dist/numbers.h"
#include "optim/optimizer.h"
#include "pipeline/engine.h"
#include "pipeline/link.h"
#include "tensor/ops.h"

namespace lockstep::pipeline {

std::string PipelineEngine::tag(const Message& m) {
  constexpr const char* names[] = {"activation", "gradient", "tied gradient"};
  return str(names[int(m.road)], " of micro-batch ", m.micro_batch, ", stage ", m.stage);
}

/// Gives tensors to a stage: over a link, or, if the stage is another chunk of this rank, by arrived_.
void PipelineEngine::send(const Message& message, int to_stage, std::vector<Tensor> tensors, const Shapes* shapes) {
  if (!remote(to_stage)) arrived_[message] = std::move(tensors);
  else lanes_.at({message.road, rank_, schedule_.place(to_stage).rank}).link->send(tensors, tag(message), shapes);
}

void PipelineEngine::send_activation(const StepAction& a, Flight& f) {
  const int stage = stage_of(a);
  const Shapes shapes = Shapes::of(f.outputs, f.random_call);
  const auto [known, is_new] = shapes_.emplace(shapes_key(stage, a.micro_batch), shapes);
  LOCKSTEP_CHECK(known->second == shapes, "[pipeline] stage ", stage, " gives ", shapes.text(), " for micro-batch ",
                 a.micro_batch, ", it gave ", known->second.text(),
                 " for the first one; make all micro-batches the same shape, or set dynamic_shapes");
  std::vector<Tensor> tensors;
  for (const Variable& v : f.outputs) tensors.push_back(v.tensor());
  send({Road::activation, stage, a.micro_batch}, stage + 1, std::move(tensors), is_new ? &shapes : nullptr);
  if (!now_.training) f.outputs.clear();
}

void PipelineEngine::receive_activation(const StepAction& a, Flight& f) {
  const int from = stage_of(a) - 1;
  const auto tensors = fetch({Road::activation, from, a.micro_batch});
  const Shapes& shapes = shapes_.at(shapes_key(from, a.micro_batch));
  for (size_t i = 0; i < tensors.size(); ++i) f.inputs.emplace_back(tensors[i], shapes.tensors[i].wants_grad);
  f.random_call = shapes.random_call;
}

/// Starts to receive the next message of a link. Returns false if no message is left, or if its shapes are not known
/// yet. With `must`, waits for the shapes of an activation instead: the sender sends them before the activation.
bool PipelineEngine::post(Lane& lane, bool must) {
  if (lane.expected.empty()) return false;
  const Message& e = lane.expected.front();
  const std::string name = tag(e);
  std::vector<Shapes::One> tensors;
  if (e.road == Road::activation) {
    const std::pair<int, int> key = shapes_key(e.stage, e.micro_batch);
    if (!shapes_.count(key)) {
      if (!must) return false;
      const auto watch = stopwatch(waited_);
      shapes_[key] = lane.link->receive_shapes(name);
    }
    tensors = shapes_.at(key).tensors;
  } else if (e.road == Road::gradient) {
    const auto found = flights_.find({schedule_.place(e.stage - 1).chunk, e.micro_batch});
    if (found == flights_.end() || found->second.outputs.empty()) return false;
    for (const Shapes::One& one : Shapes::of(found->second.outputs, 0).tensors)
      if (one.wants_grad) tensors.push_back(one);
  } else {
    for (const Variable& p : ties_[e.tie].parameters)
      tensors.push_back({p.dtype(), p.shape(), true, !p.tensor().device().is_cpu()});
  }
  lane.link->post(tensors, name);
  return true;
}

// Waits for a message. Stores earlier messages of the same link until they are fetched.
std::vector<Tensor> PipelineEngine::fetch(const Message& wanted) {
  const int from_rank = schedule_.place(wanted.stage).rank;
  if (from_rank == rank_) return std::move(arrived_.extract(wanted).mapped());
  Lane& lane = lanes_.at({wanted.road, from_rank, rank_});
  while (!arrived_.count(wanted)) {
    LOCKSTEP_CHECK(lane.link->is_posted() || post(lane, true), "[pipeline] ", tag(wanted),
                   " is not expected, or its shapes are unknown; this is a bug in Lockstep, please report it");
    const auto watch = stopwatch(waited_);
    arrived_[lane.expected.front()] = lane.link->arrive();
    lane.expected.pop_front();
  }
  std::vector<Tensor> tensors = std::move(arrived_.extract(wanted).mapped());
  if (!lane.link->is_posted()) post(lane, false);  // received while this rank computes
  return tensors;
}

/// Queues the messages that this rank will receive on each link, in the order of the senders' lists of actions (`all`).
void PipelineEngine::expect(const Lists& all) {
  for (int from = 0; from < int(all.size()); ++from) {
    if (from == rank_) continue;
    for (const StepAction& a : all[size_t(from)]) {
      const int stage = schedule_.virtual_stage(from, a.chunk);
      const auto add = [&](Road road, int to_stage, size_t tie) {
        if (schedule_.place(to_stage).rank == rank_)
          lanes_.at({road, from, rank_}).expected.push_back({road, stage, a.micro_batch, tie});
      };
      if (a.what == Do::send_activation) add(Road::activation, stage + 1, 0);
      if (a.what == Do::send_gradient) add(Road::gradient, stage - 1, 0);
      for (const TiedStages& hop : hops_)
        if (a.what == Do::add && hop.from == stage) add(Road::tied, hop.to, hop.key);
    }
  }
}

// --- gradients: summed over micro-batches in tree order, then over replicas of the pipeline. Those of tied parameters
// travel from the last stage that uses the parameters to the first, for one micro-batch at a time, so that they are
// added in the same order as in one process. ---

// For each tie of the stage of `a`: takes the gradients of the tied parameters for one micro-batch, as computed by the
// next stage that uses these parameters. Waits if that stage is on another rank.
std::vector<std::pair<Variable, Tensor>> PipelineEngine::take_tied(const StepAction& a) {
  std::vector<std::pair<Variable, Tensor>> before;
  for (const TiedStages& hop : hops_) {
    if (hop.to != stage_of(a)) continue;
    auto gradients = fetch({Road::tied, hop.from, a.micro_batch, hop.key});
    for (size_t p = 0; p < gradients.size(); ++p)
      before.emplace_back(ties_[hop.key].parameters[p], std::move(gradients[p]));
  }
  return before;
}

// Passes gradients of tied parameters to the previous stage that uses these parameters. Adds all other gradients to the
// chunk's sum.
void PipelineEngine::add(const StepAction& a, Flight& f) {
  if (f.split) {
    for (auto& [p, gradient] : f.late) p.grad() = std::move(gradient);
    f.late.clear();
    f.split->finish(take_tied(a));
    f.split.reset();
  }
  for (const TiedStages& hop : hops_) {
    if (hop.from != stage_of(a)) continue;
    std::vector<Tensor> gradients;
    for (Variable& p : ties_[hop.key].parameters) {
      gradients.push_back(p.grad().defined() ? p.grad() : zeros_like(p.tensor()));
      p.clear_grad();
    }
    send({Road::tied, hop.from, a.micro_batch, hop.key}, hop.to, std::move(gradients));
  }
  if (const auto sum = sums_.find(a.chunk); sum != sums_.end()) sum->second.add();
}

/// Turns .grad into the mean over all micro-batches of all replicas, or, without options.reduce, into the sum over the
/// micro-batches of this replica.
void PipelineEngine::reduce() {
  for (auto& [chunk, sum] : sums_) sum.finish();
  if (now_.micro_batches > 1 && options_.reduce) {
    for (const Variable& p : module_->parameters())
      if (p.grad().defined()) div_scalar_(p.grad(), now_.micro_batches);
  }
  for (Tie& tie : ties_) {
    if (!tie.ranks) continue;
    for (Variable& p : tie.parameters) {
      if (!p.grad().defined()) p.grad() = zeros_like(p.tensor());
      tie.ranks->broadcast(p.grad(), 0, {.tag = "gradient of tied " + tie.key});
    }
  }
}

/// Unfreezes, for the step, the parameters that were frozen after the engine was made, and returns them. The stages
/// therefore exchange the same messages as before.
std::vector<Variable> PipelineEngine::train_frozen() {
  std::vector<std::string> names;
  std::vector<Variable> frozen;
  for (const auto& [name, p] : places_) {
    LOCKSTEP_CHECK(!p.variable.grad().defined(), "[pipeline] ", name,
                   " still has the gradient of the last step; call the optimizer's zero_grad() after step()");
    if (p.variable.requires_grad() == p.trained) continue;
    if (!p.trained) parallel::fail_unfrozen("pipeline", name, world_);
    names.push_back(name);
    frozen.push_back(p.variable);
  }
  if (replicas_) frozen_.agree("pipeline", names, *replicas_);
  for (Variable& p : frozen) p.requires_grad_(true);
  return frozen;
}

double PipelineEngine::norm(const std::vector<std::pair<std::string, double>>& squares) const {
  std::map<std::pair<int, int>, double> norms;  // norm of each parameter, by layer and index in the layer
  for (const auto& [name, sum] : squares) {
    const Place& p = places_.at(name);
    if (p.leads) norms[{p.layer, p.place}] = optim::norm_of_squares(sum, p.variable.dtype());
  }
  if (plan_.pp > 1) {
    const int64_t max_norms = dist::all_reduced<int64_t>({int64_t(norms.size())}, mesh_->pp(),
                                                         {.op = dist::ReduceOp::max, .tag = "count of norms"})[0];
    std::vector<double> mine;
    for (const auto& [at, value] : norms) mine.insert(mine.end(), {double(at.first), double(at.second), value});
    mine.resize(size_t(3 * max_norms), -1);
    const std::vector<double> words = dist::all_gathered(mine, mesh_->pp(), {.tag = "norms"});
    for (size_t i = 0; i + 2 < words.size(); i += 3)
      if (words[i] >= 0) norms[{int(words[i]), int(words[i + 1])}] = words[i + 2];
  }
  double total = 0;
  for (const auto& [number, value] : norms) total += value * value;
  return std::sqrt(total);
}

double PipelineEngine::clip_grad_norm(double max_norm) {
  LOCKSTEP_CHECK(max_norm >= 0, "[pipeline] expected max_norm >= 0, got ", max_norm);
  LOCKSTEP_CHECK(options_.reduce && plan_.tp == 1,
                 "[pipeline] clip_grad_norm() does not work with tensor parallelism or ZeRO; set gradient_clipping in "
                 "the engine's configuration");
  std::vector<std::pair<std::string, double>> squares;
  for (const auto& [name, p] : places_) {
    const Tensor& grad = p.variable.checked_grad("grad_norm");
    if (grad.defined() && grad.numel() > 0) squares.emplace_back(name, sum_squares(grad, {}, false, f64).item());
  }
  return optim::clip_to_norm(module_->parameters(), norm(squares), max_norm);
}

/// Drops what is known of single micro-batches.
void PipelineEngine::drop_flights() noexcept {
  flights_.clear();
  std::erase_if(shapes_, [](const auto& one) { return one.first.second >= 0; });
}

/// Discards the state of a step that failed.
void PipelineEngine::abandon() noexcept {
  for (auto& [chunk, sum] : sums_) sum.discard();
  for (Variable& p : module_->parameters()) p.clear_grad();
  drop_flights();
  losses_.clear();
  arrived_.clear();
  for (auto& [road, lane] : lanes_) {
    lane.expected.clear();
    lane.link->forget();
  }
}

// --- at the end of a step ---

/// Returns the losses of all micro-batches, on all ranks. Also tells all ranks how long each ran and waited.
std::vector<double> PipelineEngine::gather_losses(const std::vector<Tensor>& losses) {
  const size_t values = size_t(now_.values), n = size_t(now_.micro_batches) * size_t(plan_.dp) * values,
               ranks = world_ ? size_t(world_->size()) : 1, me = world_ ? size_t(world_->rank()) : 0;
  std::vector<double> all(n + 2 * ranks);
  for (size_t m = 0; m < losses.size(); ++m) {
    if (!losses[m].defined() || at_.tp > 0) continue;  // all tensor-parallel ranks hold the same loss: one counts
    const std::vector<double> numbers = losses[m].to_vector<double>();
    for (size_t i = 0; i < values; ++i) all[size_t(number(int64_t(m))) * values + i] = numbers[i] / plan_.cp;
  }
  if (took_) {  // use the device's seconds: the host ran ahead of the device
    took_->second.synchronize();
    ran_ = took_->second.milliseconds_since(took_->first) / 1000;
    waited_ = 0;
    for (auto& [road, lane] : lanes_) waited_ += lane.link->take_waited();
    took_.reset();
  }
  all[n + 2 * me] = ran_;
  all[n + 2 * me + 1] = waited_;
  // Every number is nonzero on one rank only, so the sum is exact. The exception is context parallelism: the ranks that
  // share a sequence each add their share of its loss.
  if (world_) all = dist::all_reduced(all, *world_, {.tag = "pipeline losses"});
  if (now_.training) {
    std::map<int, double> longest;  // longest time of each replica of the pipeline
    const auto replica = [&](size_t rank) { return parallel::coordinates_of(plan_, int(rank)).dp; };
    for (size_t r = 0; r < ranks; ++r) longest[replica(r)] = std::max(longest[replica(r)], all[n + 2 * r]);
    times_.clear();
    for (size_t r = 0; r < ranks; ++r) {
      const double busy = all[n + 2 * r] - all[n + 2 * r + 1];
      times_.push_back({busy, longest[replica(r)] - busy});
    }
  }
  all.resize(n);
  return all;
}

}  // namespace lockstep::pipeline
