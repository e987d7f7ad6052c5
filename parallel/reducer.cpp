// The reducer: hooks on the tape, the placeholder in .grad, and what happens in one backward pass. See reducer.h.
#include "parallel/reducer.h"

#include <algorithm>

#include "autograd/tape.h"
#include "dist/numbers.h"
#include "parallel/flat.h"
#include "tensor/memory.h"

namespace lockstep::parallel {

Reducer::Reducer(Policy& policy, dist::ProcessGroup* group, const Rules& rules, std::vector<Parameter> all)
    : parameters(std::move(all)), policy_(policy), group_(group), rules_(rules), ordered_(!rules.hooks) {
  int64_t largest = 0;
  std::vector<Variable> trained;
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = parameters[i];
    Variable& v = p.variable;
    const bool trains = v.requires_grad();
    if (trains) {
      trained.push_back(v);
      largest = std::max(largest, v.numel() * size_of(v.dtype()));
      if (rules_.hooks) p.hooks[0] = v.on_grad([this, i](const Tensor&) { return before_add(i), Tensor(); });
    }
    if (!rules_.hooks || (!trains && !is_floating(v.dtype()))) continue;
    v.requires_grad_(true);  // frozen parameters are watched too: a gradient of one is an Error
    p.hooks[1] = v.on_grad_complete([this, i](Tensor&) { arrived(i); });
    v.requires_grad_(trains);
  }
  Ref<Storage> emptied = Storage::allocate(largest, parameters.at(0).variable.device());
  emptied->empty(rules.emptied);
  placeholder_ = Tensor(emptied, 0, {0}, {1}, u8);
  if (!rules_.hooks && rules_.exposes_grad) return;  // a GradientSum does not wrap the model
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

void Reducer::cut(std::vector<Bucket> all) {
  buckets = std::move(all);
  order_.clear();
  for (size_t u = 0; u < buckets.size(); ++u) {
    if (!buckets[u].members.empty()) order_.push_back(u);
    for (const size_t i : buckets[u].members) parameters[i].bucket = u;
  }
  // Allocates shared device memory now: that is collective, and in backward ranks would get here at different times.
  for (const size_t u : order_)
    if (const Bucket& bucket = buckets[u];
        rules_.at_once && bucket.group && bucket.group->size() > 1 && !bucket.options.device.is_cpu())
      own_memory(u);
}

void Reducer::cut(const std::vector<size_t>& order, int64_t cap, int64_t first_cap, bool collective) {
  std::vector<Variable> variables;
  for (const size_t i : order) variables.push_back(parameters[i].variable);
  std::vector<Bucket> all;
  for (const std::vector<size_t>& indices : plan_buckets(variables, cap, first_cap)) {
    const Variable& first = variables[indices[0]];
    // Ranks of a host share the memory of buckets. On devices other than the CPU, sharing memory is collective.
    Bucket& bucket = all.emplace_back(Bucket{.options = {.dtype = first.dtype(), .device = first.device()},
                                             .dtype = first.dtype(),
                                             .group = first.device().is_cpu() || collective ? group_ : nullptr});
    for (const size_t index : indices) {
      bucket.members.push_back(order[index]);
      parameters[order[index]].offset = bucket.numel;
      bucket.numel += variables[index].numel();
    }
  }
  cut(std::move(all));
}

Tensor Reducer::view(const Tensor& flat, const Parameter& p) {
  return flat.narrow(0, p.offset, p.variable.numel()).view(p.variable.shape());
}

/// Returns memory for the gradients of one micro-batch of a bucket. The first micro-batch gets a buffer that is kept
/// between steps and in which the sum is formed; later ones get new memory.
Tensor Reducer::own_memory(size_t u) {
  Bucket& bucket = buckets[u];
  const Tensor& grad = parameters[bucket.members[0]].variable.grad();
  if (rules_.adopts_grad && bucket.members.size() == 1 && bucket.group->size() == 1 && grad.defined() &&
      !is_placeholder(grad) && grad.numel() == bucket.numel && grad.dtype() == bucket.options.dtype &&
      grad.is_contiguous() && grad.is_exclusive())
    return parameters[bucket.members[0]].variable.checked_grad("reducer").view({bucket.numel});
  const MemoryScope scope(Memory::gradient);
  // What no other rank shares, a GradientSum leaves to .grad: kept, it would stay beside the optimizer's memory.
  if (bucket.sum.count() > 0 || (!rules_.hooks && rules_.exposes_grad && !bucket.group))
    return empty({bucket.numel}, bucket.options);
  if (!bucket.kept.defined())
    bucket.kept = bucket.group ? bucket.group->shared_empty({bucket.numel}, bucket.options.dtype, bucket.options.device)
                               : empty({bucket.numel}, bucket.options);
  return bucket.kept;
}

// --- while gradients are collected, .grad is a placeholder: reading it is an Error; clearing it is noticed ---

/// Called when backward is about to add a gradient to .grad, but not in autograd's grad(), which leaves .grad alone.
/// Clears .grad if it is the placeholder, or a view of flat memory whose reduction has already started. In the second
/// case the new gradient comes too late, and arrived() raises an Error.
void Reducer::before_add(size_t i) {
  Parameter& p = parameters[i];
  const bool held = is_placeholder(p.variable.grad());
  if (!held && !(in_pass_ && buckets[p.bucket].finish)) return;
  p.placeholder_cleared |= held;
  p.variable.clear_grad();
}

void Reducer::notice_cleared() {
  std::vector<size_t> cleared;
  const Parameter* kept = nullptr;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (!holds(p)) continue;
    if (p.placeholder_cleared || is_placeholder(p.variable.grad())) kept = &p;
    else cleared.push_back(i);
  }
  if (cleared.empty()) return;
  if (!kept) return forget();
  if (!rules_.exposes_grad) {
    fail_everywhere(*group_, str("[", rules_.name, "] the gradient of ", parameters[cleared.back()].name,
                                 " was cleared between micro-batches, that of ", kept->name,
                                 " was not; clear all of them or none"));
  }
  for (const size_t i : cleared) {
    for (const Tensor& sum : buckets[parameters[i].bucket].sum.levels())
      if (sum.defined()) view(sum, parameters[i]).zero_();
    parameters[i].used = false;
  }
}

void Reducer::forget() {
  for (size_t u = 0; u < buckets.size(); ++u) {
    try {
      finish(u);
    } catch (...) {}  // NOLINT: the result of this reduction is not needed
    buckets[u].sum = {};
    buckets[u].flat = {};
  }
  for (Parameter& p : parameters) {
    p.used = p.placeholder_cleared = false;
    if (is_placeholder(p.variable.grad())) p.variable.clear_grad();
  }
  policy_.discarded();
}

// --- the course of a pass ---

void Reducer::begin_pass() {
  after_backward([this] { end(); }, [this] { abandon(); });
  in_pass_ = true;
  begin(no_sync_ == 0);
}

void Reducer::begin(bool reduces) {
  syncing_ = reduces;
  next_ = 0;
  arrivals_.clear();
  notice_cleared();
  for (Bucket& bucket : buckets) bucket.waiting = 0;
  for (Parameter& p : parameters) p.arrivals = 0, p.expected = 1;
  if (in_pass_) policy_.pass(Pass::begins);
  std::vector<std::string> frozen;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (p.bucket == SIZE_MAX) continue;
    if (!p.trains()) frozen.push_back(p.is_expert ? str("parameter ", i) : p.name);
    if (p.expected > 0) ++buckets[p.bucket].waiting;
  }
  if (syncing_ && group_) frozen_.agree(rules_.name, frozen, *group_);
}

std::string Reducer::Policy::unexpected(const Parameter& p) {
  return str(p.name, " got its gradient ", p.arrivals + 1, " times in one backward, expected ", p.expected,
             " (is backward() called inside a backward? call it outside)");
}

void Reducer::arrived(size_t i) {
  Parameter& p = parameters[i];
  if (p.bucket == SIZE_MAX) fail_unfrozen(rules_.name, p.name, group_);
  if (!in_pass_) begin_pass();
  if (p.arrivals >= p.expected) fail_everywhere(*group_, str("[", rules_.name, "] ", policy_.unexpected(p)));
  if (++p.arrivals == 1) arrivals_.push_back(i);
  p.used = true;
  if (rules_.at_once) take(i);
  if (p.arrivals < p.expected || --buckets[p.bucket].waiting > 0) return;
  if (rules_.overlap || !syncing_) launch();
  policy_.pass(Pass::bucket_complete, p.bucket);
}

/// Begins a micro-batch of a bucket: gets its flat memory, and zeroes the gaps in it.
void Reducer::open(size_t u) {
  Bucket& bucket = buckets[u];
  bucket.flat = policy_.memory(u);
  if (!bucket.flat.defined()) bucket.flat = own_memory(u);
  int64_t end = 0;  // of the members so far
  const auto zero_until = [&](int64_t next) {
    if (next > end) bucket.flat.narrow(0, end, next - end).zero_();
  };
  for (const size_t i : bucket.members) {
    zero_until(parameters[i].offset);
    end = parameters[i].offset + parameters[i].variable.numel();
  }
  zero_until(bucket.numel);
}

/// Copies the gradient of parameter i into flat memory, or zeros if there is none. A gradient not cleared since the
/// last step is included, as with a plain optimizer.
void Reducer::take(size_t i) {
  Parameter& p = parameters[i];
  const Bucket& bucket = buckets[p.bucket];
  if (!bucket.flat.defined()) open(p.bucket);
  const Tensor target = view(bucket.flat, p);
  Tensor& grad = p.variable.grad();
  if (!grad.defined() || is_placeholder(grad)) {
    target.zero_();
    return;
  }
  LOCKSTEP_CHECK(grad.dtype() == bucket.dtype, "[reducer] expected a gradient of ", bucket.dtype, ", got ",
                 grad.dtype(), "; change the dtype of a model (Module::to) before it is wrapped");
  p.variable.checked_grad("reducer");
  const bool in_place = grad.storage() == target.storage() && grad.offset() == target.offset() && grad.is_contiguous();
  if (!in_place) target.copy_(grad);  // else the tape added to the flat memory directly
  p.used = true;
  if (rules_.hooks && rules_.exposes_grad) grad = target;
  else p.variable.clear_grad();
}

/// Completes a bucket's flat memory for this micro-batch, and makes it a leaf of the summation tree.
void Reducer::complete(size_t u) {
  Bucket& bucket = buckets[u];
  for (const size_t i : bucket.members)
    if (!rules_.at_once || parameters[i].arrivals == 0) take(i);
  policy_.filled(u, bucket.flat);
  bucket.sum.add(std::exchange(bucket.flat, {}));
  if (syncing_ && rules_.exposes_grad) return;
  for (const size_t i : bucket.members)
    if (const Variable& v = parameters[i].variable; holds(parameters[i]))
      v.grad() = Tensor(placeholder_.storage(), 0, v.shape(), contiguous_strides(v.shape()), v.dtype());
}

/// Starts to reduce a bucket's sum over micro-batches.
void Reducer::start(size_t u) {
  const Tensor sum = buckets[u].sum.take();
  buckets[u].finish = policy_.start(u, sum);
  if (rules_.exposes_grad) buckets[u].flat = sum;
}

/// Completes buckets in the fixed order `order_`, up to the first that still waits for a gradient, and starts their
/// reductions if the pass reduces.
void Reducer::launch() {
  for (; next_ < order_.size() && buckets[order_[next_]].waiting == 0; ++next_) {
    complete(order_[next_]);
    if (syncing_) start(order_[next_]);
  }
}

void Reducer::finish_all() {
  for (const size_t u : order_) finish(u);
  if (!rules_.exposes_grad) return;
  const std::vector<bool> used = policy_.used();
  for (size_t i = 0; i < used.size(); ++i) {
    Parameter& p = parameters[i];
    if (p.bucket == SIZE_MAX) continue;
    if (used[i]) p.variable.grad() = view(buckets[p.bucket].flat, p);
    else p.variable.clear_grad();
    p.used = false;
  }
  for (Bucket& bucket : buckets) bucket.flat = {};
}

void Reducer::reduce() {
  for (const size_t u : order_) start(u);
  finish_all();
}

void Reducer::end() {
  if (in_pass_) policy_.pass(Pass::backward_ends);
  const bool any = std::any_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.arrivals > 0; });
  if (any || rules_.exposes_grad || !rules_.hooks) {  // else this backward was for gradients of inputs only
    for (const size_t u : order_) buckets[u].waiting = 0;
    launch();
    if (syncing_) finish_all();
    if (syncing_ && !ordered_) agree_on_order();
  }
  for (Parameter& p : parameters) p.placeholder_cleared = false;
  if (std::exchange(in_pass_, false)) policy_.pass(Pass::ended);
}

void Reducer::add(bool reduces) {
  try {
    for (const Parameter& p : parameters)
      if (p.bucket == SIZE_MAX && p.variable.requires_grad()) fail_unfrozen(rules_.name, p.name, group_);
    begin(reduces);
    end();
  } catch (...) {
    abandon();
    throw;
  }
}

void Reducer::agree_on_order() {
  ordered_ = true;
  std::vector<int64_t> before, order(arrivals_.begin(), arrivals_.end());
  for (const size_t u : order_) {
    for (const size_t i : buckets[u].members) {
      before.push_back(int64_t(i));
      if (parameters[i].arrivals == 0) order.push_back(int64_t(i));
    }
  }
  const Tensor agreed = Tensor::from(order, {int64_t(order.size())});
  group_->broadcast(agreed, 0, {.tag = "order of gradients"});
  order = agreed.to_vector<int64_t>();
  if (order == before) return;
  // The bucket that is complete first is reduced first.
  std::vector<size_t> last(buckets.size());
  for (size_t k = 0; k < order.size(); ++k) last[parameters[size_t(order[k])].bucket] = k;
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return last[a] < last[b]; });
  policy_.ordered({order.begin(), order.end()});
}

/// Called when an exception ended a pass: discards the gradients of this step, which are unusable.
void Reducer::abandon() noexcept {
  in_pass_ = false;
  for (Parameter& p : parameters)
    if (p.arrivals > 0 || holds(p)) p.variable.clear_grad();
  try {
    forget();
    policy_.pass(Pass::ended);
  } catch (...) {}  // NOLINT: the group has failed; the exception in flight says why
}

}  // namespace lockstep::parallel
