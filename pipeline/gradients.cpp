// Gradients of a pipeline: summed over micro-batches in tree order on each rank, then over the replicas of the
// pipeline. Tied gradients travel from the last stage that uses them to the first, micro-batch by micro-batch, so the
// summation order is that of one process.
#include <algorithm>
#include <cmath>

#include "dist/numbers.h"
#include "optim/clip.h"
#include "pipeline/engine.h"
#include "tensor/ops.h"

namespace lockstep::pipeline {

int Engine::Tie::before(int stage) const {
  const auto at = std::find(stages.begin(), stages.end(), stage);
  return at == stages.end() || at == stages.begin() ? -1 : at[-1];
}

int Engine::Tie::after(int stage) const {
  const auto at = std::find(stages.begin(), stages.end(), stage);
  return at == stages.end() || at + 1 == stages.end() ? -1 : at[1];
}

// For each tie of the stage of `a`: takes the gradients of the tied parameters for one micro-batch, as computed by the
// next stage that uses these parameters. Waits if that stage is on another rank.
std::vector<std::pair<Variable, Tensor>> Engine::take_tied(const Action& a) {
  std::vector<std::pair<Variable, Tensor>> before;
  const int stage = schedule_.virtual_stage(rank_, a.chunk);
  for (size_t t = 0; t < ties_.size(); ++t) {
    Tie& tie = ties_[t];
    const int from = tie.after(stage);
    if (from < 0) continue;
    if (remote(from)) tie.waiting[{from, a.micro_batch}] = fetch({Road::tied, from, a.micro_batch, int(t)});
    const auto found = tie.waiting.find({from, a.micro_batch});
    for (size_t p = 0; p < tie.parameters.size(); ++p)
      before.emplace_back(tie.parameters[p], std::move(found->second[p]));
    tie.waiting.erase(found);
  }
  return before;
}

// Returns true if take_tied() would return without waiting.
bool Engine::tied_have_come(const Action& a) {
  const int stage = schedule_.virtual_stage(rank_, a.chunk);
  for (size_t t = 0; t < ties_.size(); ++t) {
    const int from = ties_[t].after(stage);
    if (from < 0) continue;
    if (remote(from) ? !has_come({Road::tied, from, a.micro_batch, int(t)})
                     : !ties_[t].waiting.count({from, a.micro_batch}))
      return false;
  }
  return true;
}

/// Finishes, in order, the micro-batches whose tied gradients have arrived. Waits for the tied gradients of the oldest
/// as long as more than `most` micro-batches are left.
void Engine::collect_late(size_t most) {
  while (!late_.empty() && (late_.size() > most || tied_have_come(late_.front().action))) {
    Late one = std::move(late_.front());
    late_.pop_front();
    for (auto& [p, gradient] : one.gradients) p.grad() = std::move(gradient);
    flight(one.action).split->finish(take_tied(one.action));
    flight(one.action).split.reset();
    collect(one.action);
  }
}

// Passes gradients of tied parameters to the previous stage that uses these parameters. Adds all other gradients to the
// chunk's sum.
void Engine::collect(const Action& a) {
  const int stage = schedule_.virtual_stage(rank_, a.chunk);
  for (Tie& tie : ties_) {
    const int to = tie.before(stage);
    if (to < 0) continue;
    std::vector<Tensor> gradients;
    for (Variable& p : tie.parameters) {
      gradients.push_back(p.grad().defined() ? p.grad() : zeros_like(p.tensor()));
      p.clear_grad();
    }
    if (!remote(to)) tie.waiting[{stage, a.micro_batch}] = std::move(gradients);
    else link(Road::tied, rank_, schedule_.place(to).rank).send(gradients, tag({Road::tied, stage, a.micro_batch}));
  }
  if (auto& sum = sums_[size_t(a.chunk)]) sum->add();
}

/// Turns .grad into the mean over all micro-batches of all replicas, or, without options.reduce, into the sum over the
/// micro-batches of this replica.
void Engine::reduce() {
  for (auto& sum : sums_)
    if (sum) sum->finish(copies_);
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
std::vector<Variable> Engine::train_frozen() {
  std::vector<std::string> names;
  std::vector<Variable> frozen;
  for (const auto& [name, p] : places_) {
    LOCKSTEP_CHECK(!p.parameter.grad().defined(), "[pipeline] ", name,
                   " still has the gradient of the last step; call the optimizer's zero_grad() after step()");
    if (p.parameter.requires_grad() == p.trained) continue;
    if (!p.trained) parallel::fail_unfrozen("pipeline", name, world_);
    names.push_back(name);
    frozen.push_back(p.parameter);
  }
  if (copies_) frozen_.agree("pipeline", names, *copies_);
  for (Variable& p : frozen) p.requires_grad_(true);
  return frozen;
}

double Engine::norm(const std::vector<std::pair<std::string, double>>& squares) const {
  std::map<std::pair<int, int>, double> norms;  // norm of each parameter, by layer and index in the layer
  for (const auto& [name, sum] : squares) {
    const Place& p = places_.at(name);
    if (p.leads) norms[{p.layer, p.place}] = optim::norm_of_squares(sum, p.parameter.dtype());
  }
  if (pp_) {
    const int64_t most = dist::all_reduced<int64_t>({int64_t(norms.size())}, *pp_,
                                                    {.op = dist::ReduceOp::max, .tag = "count of norms"})[0];
    std::vector<double> mine(size_t(3 * most), -1);
    size_t at = 0;
    for (const auto& [number, value] : norms) mine[at++] = number.first, mine[at++] = number.second, mine[at++] = value;
    const std::vector<double> words = dist::all_gathered(mine, *pp_, {.tag = "norms"});
    for (size_t i = 0; i + 2 < words.size(); i += 3)
      if (words[i] >= 0) norms[{int(words[i]), int(words[i + 1])}] = words[i + 2];
  }
  double total = 0;
  for (const auto& [number, value] : norms) total += value * value;
  return std::sqrt(total);
}

double Engine::clip_grad_norm(double max_norm) {
  LOCKSTEP_CHECK(max_norm >= 0, "[pipeline] expected max_norm >= 0, got ", max_norm);
  LOCKSTEP_CHECK(options_.reduce && plan_.tp == 1,
                 "[pipeline] clip_grad_norm() does not work with tensor parallelism or ZeRO; set gradient_clipping in "
                 "the engine's configuration");
  std::vector<std::pair<std::string, double>> squares;
  for (const auto& [name, p] : places_) {
    const Tensor& grad = p.parameter.checked_grad("grad_norm");
    if (grad.defined() && grad.numel() > 0) squares.emplace_back(name, sum_squares(grad, {}, false, f64).item());
  }
  return optim::clip_to_norm(module_->parameters(), norm(squares), max_norm);
}

/// Discards the state of a step that failed.
void Engine::abandon() noexcept {
  for (auto& sum : sums_)
    if (sum) sum->discard();
  for (Tie& tie : ties_) tie.waiting.clear();
  for (Variable& p : module_->parameters()) p.clear_grad();
  flights_.clear();
  late_.clear();
  samples_.clear();
  losses_.clear();
  arrived_.clear();
  expected_.clear();
  posted_.clear();
  for (auto& [road, link] : links_) link->forget();
}

}  // namespace lockstep::pipeline
