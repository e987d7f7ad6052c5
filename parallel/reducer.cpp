// The reducer: hooks on the tape, the placeholder in .grad, and what happens in one backward pass. See reducer.h.
#include "parallel/reducer.h"

#include <algorithm>

#include "autograd/tape.h"
#include "dist/numbers.h"
#include "parallel/agreement.h"

namespace lockstep::parallel {

Reducer::Reducer(Policy& policy, dist::ProcessGroup* group, const Rules& rules, std::vector<Parameter> all)
    : parameters(std::move(all)), policy_(policy), group_(group), rules_(rules), ordered_(!rules.hooks) {
  int64_t largest = 0;
  for (const Parameter& p : parameters)
    if (p.variable.requires_grad()) largest = std::max(largest, p.variable.numel() * size_of(p.variable.dtype()));
  Ref<Storage> emptied = Storage::allocate(largest, parameters.at(0).variable.device());
  emptied->empty(rules.emptied);
  placeholder_ = Tensor(emptied, 0, {0}, {1}, u8);
  std::vector<Variable> trained;
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = parameters[i];
    if (p.variable.requires_grad()) trained.push_back(p.variable);
    if (!rules_.hooks) continue;
    if (!p.variable.requires_grad()) {
      if (!is_floating(p.variable.dtype())) continue;
      p.variable.requires_grad_(true);
      p.hooks[0] =
          p.variable.on_grad_complete([this, i](Tensor&) { fail_unfrozen(rules_.name, parameters[i].name, group_); });
      p.variable.requires_grad_(false);
      continue;
    }
    p.hooks[0] = p.variable.on_grad([this, i](const Tensor&) {
      before_add(i);
      return Tensor();
    });
    p.hooks[1] = p.variable.on_grad_complete([this, i](Tensor&) { arrived(i); });
  }
  if (!rules_.hooks && rules_.shows) return;  // a sum, not a wrapper of the model
  shared_.emplace(trained, [group](double value, const char* what) {
    return group->size() == 1
               ? value
               : dist::all_reduced<double>({value}, *group, {.op = dist::ReduceOp::mean, .tag = what})[0];
  });
}

Reducer::~Reducer() {
  for (Parameter& p : parameters) {
    for (const int hook : p.hooks)
      if (hook) p.variable.remove_hook(hook);
    if (is_placeholder(p.variable.grad())) p.variable.clear_grad();
  }
}

void Reducer::cut(std::vector<Unit> all) {
  units = std::move(all);
  order_.clear();
  for (size_t u = 0; u < units.size(); ++u) {
    if (!units[u].members.empty()) order_.push_back(u);
    for (size_t place = 0; place < units[u].members.size(); ++place) {
      Parameter& p = parameters[units[u].members[place]];
      p.unit = u;
      p.place = place;
    }
  }
}

void Reducer::reorder(const std::vector<size_t>& arrivals) {
  std::vector<size_t> last(units.size(), 0);
  for (size_t k = 0; k < arrivals.size(); ++k) last[parameters[arrivals[k]].unit] = k;
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return last[a] < last[b]; });
}

// --- while gradients are collected, .grad is a placeholder: reading it is an Error; clearing it is noticed ---

Tensor Reducer::placeholder(const Parameter& p) const {
  return Tensor(placeholder_.storage(), 0, p.variable.shape(), contiguous_strides(p.variable.shape()),
                p.variable.dtype());
}

/// Called when backward is about to add a gradient to .grad, but not in autograd's grad(), which leaves .grad alone.
/// Clears .grad if it is the placeholder, or a view of flat memory whose reduction has already started. In the second
/// case the new gradient comes too late, and arrived() raises an Error.
void Reducer::before_add(size_t i) {
  Parameter& p = parameters[i];
  const bool held = is_placeholder(p.variable.grad());
  if (!held && !(in_pass_ && units[p.unit].finish)) return;
  p.stashed |= held;
  p.variable.clear_grad();
}

void Reducer::hold(const Unit& unit) {
  if (!rules_.hooks) return;
  for (const size_t i : unit.members) {
    Parameter& p = parameters[i];
    if (!p.used || p.variable.numel() == 0) continue;
    p.held = true;
    p.variable.grad() = placeholder(p);
  }
}

void Reducer::notice_cleared() {
  std::vector<size_t> cleared;
  const Parameter* kept = nullptr;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (!p.held) continue;
    if (p.stashed || is_placeholder(p.variable.grad())) kept = &p;
    else cleared.push_back(i);
  }
  if (cleared.empty()) return;
  if (!kept) return forget();
  if (!rules_.shows) {
    fail_everywhere(*group_, str("[", rules_.name, "] the gradient of ", parameters[cleared.back()].name,
                                 " was cleared between micro-batches, that of ", kept->name,
                                 " was not; clear all of them or none"));
  }
  for (const size_t i : cleared) {
    Parameter& p = parameters[i];
    units[p.unit].gradients.discard(p.place);
    p.held = p.used = false;
  }
}

void Reducer::forget() {
  for (size_t u = 0; u < units.size(); ++u) {
    try {
      finish(u);
    } catch (...) {}  // NOLINT: the result of this reduction is not needed
    units[u].gradients.discard();
  }
  for (Parameter& p : parameters) {
    p.used = p.held = p.stashed = false;
    if (is_placeholder(p.variable.grad())) p.variable.clear_grad();
  }
  policy_.forgotten();
}

// --- the course of a pass ---

void Reducer::begin_pass() {
  after_backward([this] { end(); }, [this] { abandon(); });
  begin(no_sync_ == 0);
}

void Reducer::begin(bool reduces) {
  in_pass_ = true;
  syncing_ = reduces;
  next_ = 0;
  arrivals_.clear();
  notice_cleared();
  for (Unit& unit : units) {
    unit.waiting = 0;
    unit.settled = false;
  }
  for (Parameter& p : parameters) {
    p.seen = 0;
    p.expected = 1;
  }
  policy_.pass(Pass::begins);
  std::vector<std::string> frozen;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (p.unit != SIZE_MAX && !p.trains()) frozen.push_back(p.spread ? str("parameter ", i) : p.name);
  }
  if (syncing_ && group_) frozen_.agree(rules_.name, frozen, *group_);
  for (const Parameter& p : parameters)
    if (p.unit != SIZE_MAX && p.expected > 0) ++units[p.unit].waiting;
}

std::string Reducer::Policy::unexpected(const Parameter& p) {
  return str(p.name, " got its gradient ", p.seen + 1, " times in one backward, expected ", p.expected,
             " (a backward inside a backward?)");
}

void Reducer::arrived(size_t i) {
  if (!in_pass_) begin_pass();
  Parameter& p = parameters[i];
  if (p.seen >= p.expected) fail_everywhere(*group_, str("[", rules_.name, "] ", policy_.unexpected(p)));
  if (++p.seen == 1) arrivals_.push_back(i);
  p.used = true;
  if (rules_.at_once) take(i);
  if (p.seen < p.expected || --units[p.unit].waiting > 0) return;
  if (!syncing_) settle(p.unit);
  else if (rules_.overlap) launch();
  policy_.pass(Pass::unit_complete, p.unit);
}

/// Copies the gradient of parameter i into flat memory, or zeros if there is none. A gradient not cleared since the
/// last step is included, as with a plain optimizer.
void Reducer::take(size_t i) {
  Parameter& p = parameters[i];
  FlatGradients& gradients = units[p.unit].gradients;
  if (!gradients.is_open()) {
    if (rules_.leaves && !is_placeholder(p.variable.grad())) gradients.offer(p.place);
    gradients.open(policy_.memory(p.unit));
  }
  if (!gradients.take(p.place, is_placeholder(p.variable.grad()))) return;
  p.used = true;
  if (!rules_.hooks) return p.variable.clear_grad();
  if (rules_.shows) return;
  if (p.variable.numel() > 0) p.variable.grad() = placeholder(p);
  else p.variable.clear_grad();
}

/// Completes a unit's flat memory for this micro-batch. In a pass without reduction, makes this memory a leaf of the
/// summation tree.
void Reducer::settle(size_t u) {
  Unit& unit = units[u];
  unit.settled = true;
  for (const size_t i : unit.members)
    if (!rules_.at_once || parameters[i].seen == 0) take(i);
  policy_.filled(u, unit.gradients.flat());
  if (!syncing_) unit.gradients.fold();
  if (!syncing_ || !rules_.shows) hold(unit);
}

/// Starts the reductions of units in the fixed order `order_`, up to the first unit that still waits for a gradient.
void Reducer::launch() {
  for (; next_ < order_.size() && units[order_[next_]].waiting == 0; ++next_) {
    const size_t u = order_[next_];
    settle(u);
    units[u].finish = policy_.start(u, units[u].gradients.sum());
  }
}

void Reducer::end() {
  policy_.pass(Pass::backward_ends);
  const bool any = std::any_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.seen > 0; });
  if (any || rules_.shows) {  // else no rank reduces: this backward was for gradients of inputs only
    for (const size_t u : order_) {
      units[u].waiting = 0;
      if (!syncing_ && !units[u].settled) settle(u);
    }
    if (syncing_) {
      launch();
      for (const size_t u : order_) finish(u);
      policy_.finished();
      if (!ordered_) agree_on_order();
    }
  }
  for (Parameter& p : parameters) p.stashed = false;
  in_pass_ = false;
  policy_.pass(Pass::ended);
}

void Reducer::add(bool reduces) {
  try {
    for (const Parameter& p : parameters)
      if (p.unit == SIZE_MAX && p.variable.requires_grad()) fail_unfrozen(rules_.name, p.name, group_);
    begin(reduces);
    for (const size_t u : order_)
      for (const size_t i : units[u].members)
        if (const Tensor& grad = parameters[i].variable.grad(); grad.defined() && !is_placeholder(grad)) arrived(i);
    end();
  } catch (...) {
    abandon();
    throw;
  }
}

void Reducer::reduce() {
  for (const size_t u : order_) units[u].finish = policy_.start(u, units[u].gradients.sum());
  for (const size_t u : order_) finish(u);
  policy_.finished();
}

void Reducer::agree_on_order() {
  ordered_ = true;
  std::vector<int64_t> before, order(arrivals_.begin(), arrivals_.end());
  for (const size_t u : order_) {
    for (const size_t i : units[u].members) {
      before.push_back(int64_t(i));
      if (parameters[i].seen == 0) order.push_back(int64_t(i));
    }
  }
  const Tensor agreed = Tensor::from(order, {int64_t(order.size())});
  group_->broadcast(agreed, 0, {.tag = "order of gradients"});
  order = agreed.to_vector<int64_t>();
  if (order != before) policy_.ordered({order.begin(), order.end()});
}

/// Called when an exception ended a pass: discards the gradients of this step, which are unusable.
void Reducer::abandon() noexcept {
  in_pass_ = false;
  for (Parameter& p : parameters)
    if (p.seen > 0 || p.held) p.variable.clear_grad();
  try {
    forget();
    policy_.pass(Pass::ended);
  } catch (...) {}  // NOLINT: the group has failed; the exception in flight says why
}

}  // namespace lockstep::parallel
