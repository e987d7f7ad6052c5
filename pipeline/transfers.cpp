// Messages between stages. The schedule determines who sends what in which order, so a rank can start to receive the
// next message, in that order, before it needs it. At the end of a step, all ranks learn the losses and times.
#include <utility>

#include "dist/numbers.h"
#include "pipeline/engine.h"

namespace lockstep::pipeline {

std::string Engine::tag(const Message& m) {
  constexpr const char* names[] = {"activation", "gradient", "tied gradient"};
  return str(names[int(m.road)], " of micro-batch ", m.micro_batch, ", stage ", m.stage);
}

void Engine::send_activation(const Action& a) {
  const int stage = schedule_.virtual_stage(rank_, a.chunk);
  const Flight& f = flight(a);
  const Shapes shapes = Shapes::of(f.outputs, f.random_call);
  const bool tell = !fixed_shapes() || !shapes_sent_.count(stage);
  if (fixed_shapes()) {
    const Shapes& before = shapes_sent_.emplace(stage, shapes).first->second;
    LOCKSTEP_CHECK(before == shapes, "[pipeline] stage ", stage, " gives ", shapes.text(), " for micro-batch ",
                   a.micro_batch, ", it gave ", before.text(),
                   " for the first one; make all micro-batches the same shape, or set dynamic_shapes");
  }
  link(Road::activation, rank_, schedule_.place(stage + 1).rank)
      .send(tensors_of(f.outputs), tag({Road::activation, stage, a.micro_batch}), tell ? &shapes : nullptr);
  if (!now_.training) flight(a).outputs.clear();
}

void Engine::receive_activation(const Action& a) {
  const int from = schedule_.virtual_stage(rank_, a.chunk) - 1;
  const auto tensors = fetch({Road::activation, from, a.micro_batch});
  const auto shapes = shapes_known_.find({from, fixed_shapes() ? -1 : a.micro_batch});
  Flight& f = flights_[{a.chunk, a.micro_batch}];
  f.inputs = shapes->second.leaves(tensors);
  f.random_call = shapes->second.random_call;
  if (shapes->first.second >= 0) shapes_known_.erase(shapes);
}

void Engine::send_gradient(const Action& a) {
  const int stage = schedule_.virtual_stage(rank_, a.chunk);
  link(Road::gradient, rank_, schedule_.place(stage - 1).rank)
      .send(std::exchange(flight(a).gradients, {}), tag({Road::gradient, stage, a.micro_batch}));
}

void Engine::receive_gradient(const Action& a) {
  flight(a).gradients = fetch({Road::gradient, schedule_.virtual_stage(rank_, a.chunk) + 1, a.micro_batch});
}

/// Starts to receive the next message of a link. Returns false if no message is left, or if its shapes are not known
/// yet. With `must`, waits for the shapes of an activation instead: the sender sends them before the activation.
bool Engine::post(Road road, int from_rank, bool must) {
  auto& queue = expected_[{road, from_rank}];
  if (queue.empty()) return false;
  const Message e = queue.front();
  Link& link = this->link(road, from_rank, rank_);
  const std::string name = tag(e);
  std::vector<Shapes::One> tensors;
  if (road == Road::activation) {
    const std::pair<int, int> key{e.stage, fixed_shapes() ? -1 : e.micro_batch};
    if (!shapes_known_.count(key)) {
      if (!must) return false;
      const auto watch = stopwatch(waited_);
      shapes_known_[key] = link.receive_shapes(name);
    }
    tensors = shapes_known_.at(key).tensors;
  } else if (road == Road::gradient) {
    const auto found = flights_.find({schedule_.place(e.stage - 1).chunk, e.micro_batch});
    if (found == flights_.end() || found->second.outputs.empty()) return false;
    for (const Shapes::One& one : Shapes::of(found->second.outputs, 0).tensors)
      if (one.wants_grad) tensors.push_back(one);
  } else {
    for (const Variable& p : ties_[size_t(e.tie)].parameters)
      tensors.push_back({p.dtype(), p.shape(), true, !p.tensor().device().is_cpu()});
  }
  link.post(tensors, name);
  posted_[{road, from_rank}].push_back(e);
  queue.pop_front();
  return true;
}

// Waits for a message. Stores earlier messages of the same link until they are fetched.
std::vector<Tensor> Engine::fetch(const Message& wanted) {
  const int from_rank = schedule_.place(wanted.stage).rank;
  auto& order = posted_[{wanted.road, from_rank}];
  while (!arrived_.count(wanted)) {
    if (order.empty())
      LOCKSTEP_CHECK(post(wanted.road, from_rank, true), "[pipeline] ", tag(wanted),
                     " is not expected, or its shapes are unknown; this is a bug in Lockstep, please report it");
    const Message next = order.front();
    order.pop_front();
    const auto watch = stopwatch(waited_);
    arrived_[next] = link(wanted.road, from_rank, rank_).arrive();
  }
  std::vector<Tensor> tensors = std::move(arrived_.extract(wanted).mapped());
  if (order.empty()) post(wanted.road, from_rank, false);  // received while this rank computes
  return tensors;
}

/// True if fetch() would return at once.
bool Engine::has_come(const Message& wanted) {
  if (arrived_.count(wanted)) return true;
  const int from_rank = schedule_.place(wanted.stage).rank;
  auto& order = posted_[{wanted.road, from_rank}];
  if (order.empty() && !post(wanted.road, from_rank, false)) return false;
  return order.front() == wanted && link(wanted.road, from_rank, rank_).has_come();
}

/// Queues the messages that this rank will receive on each link, in the order of the senders' lists of actions (`all`).
void Engine::expect(const std::vector<std::vector<Action>>& all) {
  for (int from = 0; from < int(all.size()); ++from) {
    if (from == rank_) continue;
    for (const Action& a : all[size_t(from)]) {
      const int stage = schedule_.virtual_stage(from, a.chunk);
      const auto add = [&](Road road, int to_stage, int tie) {
        if (schedule_.place(to_stage).rank == rank_)
          expected_[{road, from}].push_back({road, stage, a.micro_batch, tie});
      };
      if (a.what == What::send_activation) add(Road::activation, stage + 1, 0);
      if (a.what == What::send_gradient) add(Road::gradient, stage - 1, 0);
      if (a.what != What::backward && a.what != What::backward_weight) continue;
      for (size_t t = 0; t < ties_.size(); ++t)
        if (const int to = ties_[t].before(stage); to >= 0) add(Road::tied, to, int(t));
    }
  }
}

// --- at the end of a step ---

/// Returns the losses of all micro-batches, on all ranks. Also tells all ranks how long each ran and waited.
std::vector<double> Engine::gather_losses() {
  const size_t n = size_t(now_.micro_batches) * size_t(plan_.dp) * size_t(now_.values),
               ranks = world_ ? size_t(world_->size()) : 1, me = world_ ? size_t(world_->rank()) : 0;
  std::vector<double> all(n + 2 * ranks);
  const bool counts = at_.tp == 0;  // true on one of the tensor-parallel ranks, which all hold the same loss
  for (const auto& [micro_batch, loss] : losses_) {
    const std::vector<double> numbers = loss.to_vector<double>();
    for (size_t i = 0; i < numbers.size() && counts; ++i)
      all[size_t(number(micro_batch)) * numbers.size() + i] = numbers[i] / plan_.cp;
  }
  losses_.clear();
  if (took_) {  // use the device's seconds: the host ran ahead of the device
    took_->second.synchronize();
    ran_ = took_->second.milliseconds_since(took_->first) / 1000;
    waited_ = 0;
    for (auto& [road, link] : links_)
      if (link->on_streams()) waited_ += link->take_waited();
    took_.reset();
  }
  all[n + 2 * me] = ran_;
  all[n + 2 * me + 1] = waited_;
  // Every number is nonzero on one rank only, so the sum is exact. The exception is context parallelism: the ranks that
  // share a sequence each add their share of its loss.
  if (world_) all = dist::all_reduced(all, *world_, {.tag = "pipeline losses"});
  if (now_.training) {
    std::map<int, double> longest;  // longest time of each replica of the pipeline
    const auto copy = [&](size_t rank) { return parallel::coordinates_of(plan_, int(rank)).dp; };
    for (size_t r = 0; r < ranks; ++r) longest[copy(r)] = std::max(longest[copy(r)], all[n + 2 * r]);
    times_.clear();
    for (size_t r = 0; r < ranks; ++r) {
      const double busy = all[n + 2 * r] - all[n + 2 * r + 1];
      times_.push_back({busy, longest[copy(r)] - busy});
    }
  }
  all.resize(n);
  return all;
}

}  // namespace lockstep::pipeline
