// Gradients of a pipeline: summed over micro-batches in tree order at each rank, then over the copies of the pipeline.
// Those of tied layers pass the stages that have them, last to first, for every micro-batch: so each is added as one
// process would add it.
#include <cmath>

#include "optim/clip.h"
#include "pipeline/engine_impl.h"
#include "tensor/ops.h"

namespace lockstep::pipeline {

using Impl = Engine::Impl;

namespace {

size_t index_in(const std::vector<int>& stages, int stage) {
  size_t i = 0;
  while (i < stages.size() && stages[i] != stage) ++i;
  return i;
}

}  // namespace

std::vector<std::pair<Variable, Tensor>> Impl::take_tied(const Action& a) {
  std::vector<std::pair<Variable, Tensor>> before;
  const int stage = schedule.virtual_stage(rank, a.chunk);
  for (size_t t = 0; t < ties.size(); ++t) {
    Tie& tie = ties[t];
    const size_t i = index_in(tie.stages, stage);
    if (i + 1 >= tie.stages.size()) continue;
    const int from = tie.stages[i + 1];
    if (schedule.place(from).rank != rank)
      tie.waiting[{from, a.micro_batch}] = fetch(Road::tied, from, a.micro_batch, int(t));
    const auto found = tie.waiting.find({from, a.micro_batch});
    for (size_t p = 0; p < tie.parameters.size(); ++p)
      before.emplace_back(tie.parameters[p], std::move(found->second[p]));
    tie.waiting.erase(found);
  }
  return before;
}

bool Impl::tied_have_come(const Action& a) {
  const int stage = schedule.virtual_stage(rank, a.chunk);
  for (size_t t = 0; t < ties.size(); ++t) {
    const size_t i = index_in(ties[t].stages, stage);
    if (i + 1 >= ties[t].stages.size()) continue;
    const int from = ties[t].stages[i + 1];
    if (schedule.place(from).rank == rank ? !ties[t].waiting.count({from, a.micro_batch})
                                          : !has_come(Road::tied, from, a.micro_batch, int(t)))
      return false;
  }
  return true;
}

/// Goes on with the micro-batches whose tied gradients have come, in their order, and waits until no more than `most`
/// are left.
void Impl::collect_late(size_t most) {
  while (!late.empty() && (late.size() > most || tied_have_come(late.front().action))) {
    Late one = std::move(late.front());
    late.pop_front();
    for (auto& [p, gradient] : one.gradients) p.grad() = std::move(gradient);
    flight(one.action).split->finish(take_tied(one.action));
    flight(one.action).split.reset();
    collect(one.action);
  }
}

void Impl::collect(const Action& a) {
  const int stage = schedule.virtual_stage(rank, a.chunk);
  for (Tie& tie : ties) {
    const size_t i = index_in(tie.stages, stage);
    if (i == 0 || i >= tie.stages.size()) continue;
    std::vector<Tensor> gradients;
    for (Variable& p : tie.parameters) {
      gradients.push_back(p.grad().defined() ? p.grad() : zeros_like(p.tensor()));
      p.clear_grad();
    }
    const int to = schedule.place(tie.stages[i - 1]).rank;
    if (to == rank) tie.waiting[{stage, a.micro_batch}] = std::move(gradients);
    else link(Road::tied, rank, to).send(gradients, tag(Road::tied, stage, a.micro_batch));
  }
  if (auto& sum = sums[size_t(a.chunk)]) sum->add();
}

/// .grad becomes the mean over all micro-batches of all copies of the pipeline, or (options.reduce false) the sum over
/// those of this one.
void Impl::reduce() {
  for (auto& sum : sums)
    if (sum) sum->finish(copies);
  if (count > 1 && options.reduce) {
    for (const Variable& p : module->parameters())
      if (p.grad().defined()) mul_scalar_(p.grad(), 1 / double(count));
  }
  for (Tie& tie : ties) {
    if (!tie.ranks) continue;
    for (Variable& p : tie.parameters) {
      if (!p.grad().defined()) p.grad() = zeros_like(p.tensor());
      tie.ranks->broadcast(p.grad(), 0, {.tag = "gradient of tied " + tie.key});
    }
  }
}

double norm_of_stages(NumberedNorms norms, dist::ProcessGroup* pp) {
  if (pp && pp->size() > 1) {
    const Tensor most = Tensor::from({int64_t(norms.size())}, {1});
    pp->all_reduce(most, {.op = dist::ReduceOp::max, .tag = "count of norms"});
    const int64_t length = 3 * most.item<int64_t>();
    std::vector<double> mine(size_t(length), -1);
    size_t at = 0;
    for (const auto& [number, value] : norms) mine[at++] = number.first, mine[at++] = number.second, mine[at++] = value;
    const Tensor all = empty({length * pp->size()}, {.dtype = f64});
    pp->all_gather(all, Tensor::from(mine, {length}), {.tag = "norms"});
    const std::vector<double> words = all.to_vector<double>();
    for (size_t i = 0; i + 2 < words.size(); i += 3)
      if (words[i] >= 0) norms[{int(words[i]), int(words[i + 1])}] = words[i + 2];  // a tied one is the same everywhere
  }
  double total = 0;
  for (const auto& [number, value] : norms) total += value * value;
  return std::sqrt(total);
}

double Impl::grad_norm() {
  NumberedNorms norms;
  for (const auto& p : module->numbered_parameters())
    if (p.variable.grad().defined() && p.variable.numel() > 0)
      norms[{p.layer, p.place}] = optim::grad_norm({p.variable});
  return norm_of_stages(std::move(norms), pp);
}

double Engine::clip_grad_norm(double max_norm) {
  LOCKSTEP_CHECK(max_norm >= 0, "[pipeline] expected max_norm >= 0, got ", max_norm);
  const parallel::Mesh* const mesh = impl_->mesh;
  LOCKSTEP_CHECK(
      impl_->options.reduce && (!mesh || mesh->plan().tp == 1),
      "[pipeline] clip_grad_norm() knows whole layers and the mean over all replicas; with tensor parallelism or ZeRO, "
      "the engine clips (gradient_clipping)");
  return optim::clip_to_norm(impl_->module->parameters(), impl_->grad_norm(), max_norm);
}

/// After an error: nothing of this step can be used.
void Impl::abandon() noexcept {
  for (auto& sum : sums)
    if (sum) sum->discard();
  for (Tie& tie : ties) tie.waiting.clear();
  for (Variable& p : module->parameters()) p.clear_grad();
  flights.clear();
  late.clear();
  samples.clear();
  losses.clear();
  arrived.clear();
  expected.clear();
  posted.clear();
}

}  // namespace lockstep::pipeline
