// Gradients of a pipeline: summed over micro-batches in tree order at each rank, then over the copies of the pipeline. Those of tied layers
// pass the stages that have them, last to first, for every micro-batch: so each is added as one process would add it.
#include <cmath>

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
    if (schedule.place(from).rank != rank) tie.waiting[{from, a.micro_batch}] = fetch(Road::tied, from, a.micro_batch, int(t));
    const auto found = tie.waiting.find({from, a.micro_batch});
    for (size_t p = 0; p < tie.parameters.size(); ++p) before.emplace_back(tie.parameters[p], std::move(found->second[p]));
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
    if (schedule.place(from).rank == rank ? !ties[t].waiting.count({from, a.micro_batch}) : !has_come(Road::tied, from, a.micro_batch, int(t))) return false;
  }
  return true;
}

/// Goes on with the micro-batches whose tied gradients have come, in their order, and waits until no more than `most` are left.
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
  Sum& sum = sums[size_t(a.chunk)];
  for (size_t b = 0; b < sum.buckets.size(); ++b) {
    for (size_t i = 0; i < sum.buckets[b].size(); ++i) {
      if (sum.buckets[b].take(i)) sum.used[b][i] = true;
      Variable(sum.buckets[b].parameter(i)).clear_grad();
    }
    sum.buckets[b].fold();
  }
}

/// .grad becomes the mean over all micro-batches of all copies of the pipeline, or (options.reduce false) the sum over those of this one.
void Impl::reduce() {
  std::vector<std::pair<Tensor, dist::Work>> sent;
  std::vector<int32_t> used;
  for (size_t c = 0; c < sums.size(); ++c) {
    for (size_t b = 0; b < sums[c].buckets.size(); ++b) {
      const Tensor flat = sums[c].buckets[b].sum();
      const std::string name = str("pipeline gradients, stage ", rank, ", chunk ", c, ", bucket ", b);
      sent.emplace_back(flat, copies && options.reduce ? copies->all_reduce(flat, {.op = dist::ReduceOp::mean, .tag = name, .async = true}) : dist::Work());
      for (const bool one : sums[c].used[b]) used.push_back(one);
    }
  }
  const Tensor anywhere = Tensor::from(used, {int64_t(used.size())});
  if (copies && !used.empty()) copies->all_reduce(anywhere, {.op = dist::ReduceOp::max, .tag = "pipeline used parameters"});
  for (auto& [flat, work] : sent) {
    work.wait();
    if (count > 1 && options.reduce) mul_scalar_(flat, 1 / double(count));
  }
  const std::vector<int64_t> agreed = anywhere.to_vector<int64_t>();
  size_t next = 0;
  for (Sum& sum : sums) {
    for (size_t b = 0; b < sum.buckets.size(); ++b) {
      for (size_t i = 0; i < sum.buckets[b].size(); ++i) if (agreed[next++]) sum.buckets[b].point(i);
      sum.used[b].assign(sum.used[b].size(), false);
    }
  }
  for (Tie& tie : ties) {
    if (!tie.ranks) continue;
    for (Variable& p : tie.parameters) {
      if (!p.grad().defined()) p.grad() = zeros_like(p.tensor());
      tie.ranks->broadcast(p.grad(), 0, {.tag = "gradient of tied " + tie.key});
    }
  }
}

/// From one f32 number a parameter, as optim::grad_norm() adds them: in the order of the layers, whoever has them.
double Impl::grad_norm() {
  using Norms = std::map<std::pair<int, int>, double>;
  Norms norms;
  for (const auto& p : module->numbered_parameters()) {
    if (p.variable.grad().defined() && p.variable.numel() > 0) norms[{p.layer, p.place}] = norm(p.variable.grad()).item();
  }
  if (pp) {
    const Tensor most = Tensor::from(std::vector<int64_t>{int64_t(norms.size())}, {1});
    pp->all_reduce(most, {.op = dist::ReduceOp::max, .tag = "pipeline count of norms"});
    const int64_t length = 3 * most.item<int64_t>();
    std::vector<double> mine(size_t(length), -1);
    size_t at = 0;
    for (const auto& [number, value] : norms) mine[at++] = number.first, mine[at++] = number.second, mine[at++] = value;
    const Tensor all = empty({length * pp->size()}, {.dtype = f64});
    pp->all_gather(all, Tensor::from(mine, {length}), {.tag = "pipeline norms"});
    const std::vector<double> words = all.to_vector<double>();
    for (size_t i = 0; i + 2 < words.size(); i += 3) if (words[i] >= 0) norms[{int(words[i]), int(words[i + 1])}] = words[i + 2];  // a tied one is the same everywhere
  }
  double total = 0;
  for (const auto& [number, value] : norms) total += value * value;
  return std::sqrt(total);
}

double Engine::clip_grad_norm(double max_norm) {
  LOCKSTEP_CHECK(max_norm >= 0, "[pipeline] expected max_norm >= 0, got ", max_norm);
  const parallel::Mesh* const mesh = impl_->mesh;
  LOCKSTEP_CHECK(impl_->options.reduce && (!mesh || mesh->plan().tp == 1),
                 "[pipeline] clip_grad_norm() knows whole layers and the mean over all copies; with slices or ZeRO, engine::PipelineEngine clips (gradient_clipping)");
  const double norm = impl_->grad_norm(), factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  for (const Variable& p : impl_->module->parameters()) if (p.grad().defined()) mul_scalar_(p.grad(), factor);
  return norm;
}

/// After an error: nothing of this step can be used.
void Impl::abandon() noexcept {
  for (Sum& sum : sums) {
    for (auto& bucket : sum.buckets) bucket.discard();
    for (auto& used : sum.used) used.assign(used.size(), false);
  }
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
