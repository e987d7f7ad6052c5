// The reducer: what happens in one backward pass.
//
//   gradient arrives ─▶ its part of the bucket's flat memory ─▶ bucket complete ─▶ [no_sync: leaf of the tree, done]
//                                                             ─▶ sum of the tree ─▶ all_reduce, async, in bucket order
//   end of the pass  ─▶ wait for all buckets ─▶ .grad are views of the means
//
// The order of the collectives is that of the buckets on every rank, whatever the order of the gradients.
#include "parallel/ddp.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "autograd/tape.h"
#include "dist/fingerprint.h"
#include "parallel/agreement.h"
#include "parallel/ddp_impl.h"
#include "parallel/naive_ddp.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

using Impl = DistributedDataParallel::Impl;

namespace {

/// Parameters in a wrapper now, of all ranks of this process.
struct Wrapped {
  std::mutex mutex;
  std::unordered_multiset<const void*> parameters;
};
Wrapped& wrapped() {
  static Wrapped all;
  return all;
}

}  // namespace

bool is_reduced_by_ddp(const Variable& parameter) {
  const std::lock_guard lock(wrapped().mutex);
  return wrapped().parameters.count(parameter.impl().get()) > 0;
}

Impl::Impl(nn::Module& module, Options o, dist::ProcessGroup& group) : module(module), options(std::move(o)), group(group) {
  LOCKSTEP_CHECK(std::isfinite(options.bucket_mib) && options.bucket_mib > 0, "[ddp] expected bucket_mib > 0, got ", options.bucket_mib);
  std::vector<std::string> lines{str("options bucket_mib ", options.bucket_mib, ", find_unused_parameters ", options.find_unused_parameters, ", static_graph ",
                                     options.static_graph, ", broadcast_buffers ", options.broadcast_buffers, ", init_sync ", options.init_sync, ", algorithm ",
                                     name_of(options.algorithm), ", hook ", bool(options.hook))};
  for (std::string& line : describe_model(module, options.ignore)) lines.push_back(std::move(line));
  check_agreement("ddp", lines, group);
  int64_t largest = 0;
  for (const auto& p : module.named_parameters()) {
    if (!p.variable.requires_grad() || (options.ignore && options.ignore(p.name))) continue;
    largest = std::max(largest, p.variable.numel() * size_of(p.variable.dtype()));
    parameters.push_back({.name = p.name, .variable = p.variable});
  }
  LOCKSTEP_CHECK(!parameters.empty(), "[ddp] expected a module with parameters that require grad, got none in ", module.kind(),
                 "; a model that is not trained needs no wrapper");
  if (options.init_sync) broadcast_module(module, group, 0, options.ignore);
  Ref<Storage> emptied = Storage::allocate(largest, parameters[0].variable.device());
  emptied->empty();
  placeholder_ = Tensor(emptied, 0, {0}, {1}, u8);
  std::vector<size_t> order;
  for (size_t i = parameters.size(); i-- > 0;) order.push_back(i);
  make_slots(order);
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].hooks[0] = parameters[i].variable.on_grad([this, i](const Tensor&) { before_add(i); return Tensor(); });
    parameters[i].hooks[1] = parameters[i].variable.on_grad_complete([this, i](Tensor&) { arrived(i); });
  }
  const std::lock_guard lock(wrapped().mutex);
  for (const Parameter& p : parameters) wrapped().parameters.insert(p.variable.impl().get());
}

Impl::~Impl() {
  for (Parameter& p : parameters) {
    for (const int hook : p.hooks) p.variable.remove_hook(hook);
    if (is_placeholder(p.variable.grad())) p.variable.clear_grad();
  }
  const std::lock_guard lock(wrapped().mutex);
  for (const Parameter& p : parameters) wrapped().parameters.erase(wrapped().parameters.find(p.variable.impl().get()));
}

void Impl::make_slots(const std::vector<size_t>& order) {
  std::vector<Variable> variables;
  for (const size_t i : order) variables.push_back(parameters[i].variable);
  const double mib = 1 << 20;
  const int64_t cap = int64_t(std::clamp(options.bucket_mib * mib, 1., 0x1p60));
  const auto plan = plan_buckets(variables, cap, options.bucket_mib == DdpOptions().bucket_mib ? int64_t(mib) : cap);
  slots.clear();
  for (const auto& places : plan) {
    std::vector<Variable> members;
    Bucket bucket{.index = int(slots.size()), .count = int(plan.size())};
    std::vector<size_t> indices;
    std::string names;
    for (const size_t place : places) {
      Parameter& p = parameters[order[place]];
      p.bucket = slots.size();
      p.place = members.size();
      members.push_back(p.variable);
      indices.push_back(order[place]);
      bucket.names.push_back(p.name);
      names += p.name + "\n";
    }
    std::string tag = str("ddp bucket ", bucket.index, " of ", bucket.count, ", ", bucket.names.front(), " to ", bucket.names.back(), ", #", std::hex,
                          dist::hash_text(names) >> 32);
    slots.push_back({.gradients = FlatGradients(std::move(members), &group), .bucket = std::move(bucket), .tag = std::move(tag), .members = std::move(indices)});
  }
}

// --- the placeholder: what .grad holds while gradients are collected, so that clearing it is noticed ---

Tensor Impl::placeholder(const Parameter& p) const {
  return p.variable.numel() == 0 ? empty_like(p.variable.tensor())
                                 : Tensor(placeholder_.storage(), 0, p.variable.shape(), contiguous_strides(p.variable.shape()), p.variable.dtype());
}
bool Impl::is_placeholder(const Tensor& grad) const { return grad.defined() && grad.storage() == placeholder_.storage(); }

/// The tape is about to add to .grad (or, inside grad(), not to): it must not add to the placeholder, nor to a bucket that is on its way,
/// whose gradients arrived() then refuses.
void Impl::before_add(size_t i) {
  Parameter& p = parameters[i];
  if (in_pass && slots[p.bucket].finish) return p.variable.clear_grad();  // reduce_all() gives it back
  if (!is_placeholder(p.variable.grad())) return;
  p.stashed = true;
  p.variable.clear_grad();
}

/// zero_grad() between micro-batches means: forget what was collected.
void Impl::notice_cleared() {
  const auto is_cleared = [&](const Parameter& p) { return !p.stashed && !is_placeholder(p.variable.grad()); };
  bool any_left = false, any_cleared = false;
  for (const Parameter& p : parameters) {
    if (p.held && p.variable.numel() > 0) (is_cleared(p) ? any_cleared : any_left) = true;
  }
  if (!any_cleared) return;
  for (Parameter& p : parameters) {
    if (!p.held || !is_cleared(p)) continue;
    p.held = p.used = false;
    if (any_left) slots[p.bucket].gradients.discard(p.place);
  }
  if (!any_left) for (Slot& slot : slots) slot.gradients.discard();
}

// --- one pass ---

void Impl::begin_pass() {
  // Ends the pass, also when an exception does.
  struct End {
    explicit End(Impl& impl) : impl(impl) {}
    ~End() { if (!done) impl.abandon_pass(); }
    Impl& impl;
    bool done = false;
  };
  const auto end = std::make_shared<End>(*this);
  after_backward([end] {
    end->impl.end_pass();
    end->done = true;
  });
  in_pass = true;
  syncing = no_sync_depth == 0;
  next_launch = 0;
  arrivals.clear();
  notice_cleared();
  if (join && syncing) agree(Phase::backward);
  if (options.find_unused_parameters && !options.static_graph && !saw_forward) {
    fail_everywhere("[ddp] find_unused_parameters: expected the forward to run through ddp.call() or ddp(x): a rank that uses no parameter would leave the others waiting");
  }
  const bool walked = options.find_unused_parameters && !options.static_graph && forwards == 1 && !reachable.empty();
  for (Slot& slot : slots) slot.waiting = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = parameters[i];
    p.seen = 0;
    p.absent = options.static_graph ? counted && p.expected == 0 : walked && !reachable[i];
    if (!p.absent) ++slots[p.bucket].waiting;
  }
  forwards = std::max(0, forwards - 1);
  reachable.clear();
  if (options.static_graph && !counted) return;  // the first pass counts, and reduces at its end
  for (Slot& slot : slots) if (slot.waiting == 0) settle(slot);
}

void Impl::arrived(size_t i) {
  if (!in_pass) begin_pass();
  Parameter& p = parameters[i];
  const bool counting = options.static_graph && !counted;
  if (p.absent) {
    fail_everywhere(options.static_graph ? str("[ddp] static_graph: ", p.name, " got a gradient, but none in the first backward; the graph must be the same in every step")
                                         : str("[ddp] ", p.name, " got a gradient, but what ddp.call() returned does not depend on it; return everything that the loss is made of"));
  }
  if (!counting && p.seen >= p.expected) {
    fail_everywhere(str("[ddp] ", p.name, " got its gradient ", p.seen + 1, " times in one backward, expected ", p.expected,
                        options.static_graph ? " as in the first backward" : " (a backward inside a backward?); set static_graph = true"));
  }
  if (++p.seen == 1 && !rebuilt) arrivals.push_back(i);
  p.used = true;
  Slot& slot = slots[p.bucket];
  slot.gradients.take(p.place);
  if (counting || p.seen < p.expected || --slot.waiting > 0) return;
  settle(slot);
  if (syncing && options.overlap) launch();
}

/// All gradients of this micro-batch are there.
void Impl::settle(Slot& slot) {
  for (const size_t i : slot.members) {
    Parameter& p = parameters[i];
    if (p.seen == 0 && slot.gradients.take(p.place, is_placeholder(p.variable.grad()))) p.used = true;  // was not cleared
  }
  if (syncing) {
    slot.gradients.sum();
    return;
  }
  slot.gradients.fold();
  for (const size_t i : slot.members) {
    Parameter& p = parameters[i];
    if (!p.used) continue;
    p.held = true;
    p.variable.grad() = placeholder(p);
  }
}

/// Starts the reductions of the buckets that are complete, never out of order.
void Impl::launch() {
  for (; next_launch < slots.size() && slots[next_launch].waiting == 0; ++next_launch) {
    Slot& slot = slots[next_launch];
    Bucket& bucket = slot.bucket;
    const Tensor flat = slot.gradients.sum();
    const int active = join && join->divide_by_active ? join->active : group.size();
    if (options.hook) {
      bucket.gradients = flat;
      bucket.parameters.clear();
      for (size_t i = 0; i < slot.members.size(); ++i) bucket.parameters.push_back(slot.gradients.view(flat, i));
      slot.finish = [this, flat, active, &bucket, rest = options.hook(bucket, group)] {
        if (rest) rest();
        LOCKSTEP_CHECK(bucket.gradients.defined() && bucket.gradients.storage() == flat.storage() && bucket.gradients.numel() == flat.numel(),
                       "[ddp] expected the communication hook to leave its result in bucket.gradients, of ", flat.numel(), " elements, got another tensor");
        if (active < group.size()) mul_scalar_(flat, double(group.size()) / active);
        bucket.gradients = {};
        bucket.parameters.clear();
      };
      continue;
    }
    const bool by_active = active < group.size();
    dist::Work work = group.all_reduce(flat, {.op = by_active ? dist::ReduceOp::sum : dist::ReduceOp::mean, .algorithm = options.algorithm, .tag = slot.tag,
                                              .async = true});
    slot.finish = [work, flat, by_active, active]() mutable {
      work.wait();
      if (by_active) mul_scalar_(flat, 1. / active);
    };
  }
}

void Impl::check_graph() {
  std::vector<size_t> wrong;
  if (options.static_graph) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      Parameter& p = parameters[i];
      if (!counted) p.expected = p.seen;
      else if (p.seen != p.expected) wrong.push_back(i);
    }
    counted = true;
    if (!wrong.empty()) {
      fail_everywhere(str("[ddp] static_graph: ", wrong.size(), " of ", parameters.size(), " parameters got fewer gradients than in the first backward: ", list(wrong),
                          "; the graph must be the same in every step, or use find_unused_parameters"));
    }
    return;
  }
  if (options.find_unused_parameters || !syncing) return;
  for (size_t i = 0; i < parameters.size(); ++i) if (!parameters[i].used) wrong.push_back(i);
  if (wrong.empty()) return;
  fail_everywhere(str("[ddp] ", wrong.size(), " of ", parameters.size(), " parameters got no gradient in this step: ", list(wrong),
                      ". The loss does not depend on them. Set find_unused_parameters = true, or static_graph = true when it is so in every step, or freeze them "
                      "(requires_grad_(false)) before the model is wrapped"));
}

void Impl::end_pass() {
  check_graph();
  if (syncing) {
    reduce_all();
  } else {
    for (Slot& slot : slots) if (std::exchange(slot.waiting, 0) > 0) settle(slot);
  }
  for (Parameter& p : parameters) p.stashed = false;
  in_pass = false;
}

void Impl::reduce_all() {
  for (Slot& slot : slots) if (std::exchange(slot.waiting, 0) > 0) settle(slot);
  launch();
  const std::vector<bool> used = finds_unused() ? agree_on_used() : std::vector<bool>(parameters.size(), true);
  for (Slot& slot : slots) std::exchange(slot.finish, {})();
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = parameters[i];
    if (used[i]) slots[p.bucket].gradients.point(p.place);
    else p.variable.clear_grad();
    p.used = p.held = false;
  }
  if (!rebuilt) rebuild();
}

/// What no rank used keeps an undefined gradient, so that the optimizer leaves it alone (weight decay, momentum).
std::vector<bool> Impl::agree_on_used() {
  if (options.static_graph && !used_anywhere.empty()) return used_anywhere;
  std::vector<int32_t> mine;
  for (const Parameter& p : parameters) mine.push_back(p.used);
  const Tensor map = Tensor::from(mine, {int64_t(mine.size())});
  group.all_reduce(map, {.op = dist::ReduceOp::max, .tag = "ddp used parameters"});
  used_anywhere.clear();
  for (const int64_t used : map.to_vector<int64_t>()) used_anywhere.push_back(used != 0);
  return used_anywhere;
}

/// Buckets in the order in which rank 0 saw the gradients of its first pass, so that the first is full early.
void Impl::rebuild() {
  rebuilt = true;
  std::vector<int64_t> order(arrivals.begin(), arrivals.end());
  for (const Slot& slot : slots) for (const size_t i : slot.members) if (std::find(arrivals.begin(), arrivals.end(), i) == arrivals.end()) order.push_back(int64_t(i));
  const Tensor agreed = Tensor::from(order, {int64_t(order.size())});
  group.broadcast(agreed, 0, {.tag = "ddp order of gradients"});
  order = agreed.to_vector<int64_t>();
  std::vector<size_t> before;
  for (const Slot& slot : slots) before.insert(before.end(), slot.members.begin(), slot.members.end());
  if (std::equal(before.begin(), before.end(), order.begin(), [](size_t a, int64_t b) { return int64_t(a) == b; })) return;
  make_slots({order.begin(), order.end()});
  for (Parameter& p : parameters) slots[p.bucket].gradients.take(p.place);
}

/// A pass ended by an exception: nothing of this step can be used.
void Impl::abandon_pass() noexcept {
  for (Slot& slot : slots) {
    slot.gradients.discard();
    slot.finish = {};
    slot.bucket.gradients = {};
    slot.bucket.parameters.clear();
  }
  for (Parameter& p : parameters) {
    if (p.seen > 0 || p.held) p.variable.clear_grad();
    p.used = p.held = p.stashed = false;
  }
  in_pass = false;
}

/// Every rank raises this, wherever it waits.
void Impl::fail_everywhere(const std::string& message) {
  if (group.size() == 1) fail(message);
  throw group.control().report(dist::Fault::rank_failed, group.world_rank(group.rank()), message);
}

std::string Impl::list(const std::vector<size_t>& indices) const {
  std::string names;
  for (size_t k = 0; k < indices.size() && k < 20; ++k) names += (k ? ", " : "") + parameters[indices[k]].name;
  return indices.size() > 20 ? str(names, " and ", indices.size() - 20, " more") : names;
}

// --- forward ---

/// Notes which parameters a result depends on.
void Impl::look_at(const Variable& output) {
  saw_forward = true;
  if (++forwards > 1) return reachable.clear();  // which of them backward will start from is not known
  std::unordered_map<const Node*, size_t> leaves;
  for (size_t i = 0; i < parameters.size(); ++i) leaves.emplace(parameters[i].variable.impl()->node.get(), i);
  reachable.assign(parameters.size(), false);
  std::vector<Node*> stack{output.impl()->node.get()};
  std::unordered_set<const Node*> seen{stack[0]};
  bool any = false;
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (const auto found = leaves.find(node); found != leaves.end()) any = reachable[found->second] = true;
    for (const Edge& edge : node->inputs()) if (edge.node && seen.insert(edge.node.get()).second) stack.push_back(edge.node.get());
  }
  if (any || output.is_leaf()) return;
  // No gradient will arrive, yet the other ranks wait for this one's zeros.
  Variable(output).before_backward([this, exists = std::weak_ptr<int>(alive)] {
    if (!exists.expired() && !in_pass) begin_pass();
  });
}

void Impl::sync_buffers() {
  if (options.broadcast_buffers && !buffers().empty()) receive_buffers(join ? agree(Phase::buffers).active[0] : 0);
}

void Impl::receive_buffers(int root) {
  const auto buffers = this->buffers();
  std::map<std::pair<int, std::string>, std::vector<Tensor>> kinds;  // one collective for each dtype and device
  for (const auto& b : buffers) kinds[{int(b.tensor.dtype()), str(b.tensor.device())}].push_back(b.tensor);
  for (const auto& [kind, tensors] : kinds) {
    std::vector<Tensor> rows;
    for (const Tensor& tensor : tensors) rows.push_back(tensor.reshape({tensor.numel()}));
    const Tensor flat = cat(rows);
    group.broadcast(flat, root, {.tag = "ddp buffers"});
    if (group.rank() == root) continue;
    int64_t at = 0;
    for (const Tensor& tensor : tensors) {
      tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.shape()));
      at += tensor.numel();
    }
  }
}

// --- what users see ---

DistributedDataParallel::DistributedDataParallel(nn::Module& module, Options options, dist::ProcessGroup* group)
    : impl_(std::make_unique<Impl>(module, std::move(options), group ? *group : dist::world())) {}
DistributedDataParallel::~DistributedDataParallel() = default;
nn::Module& DistributedDataParallel::module() { return impl_->module; }
dist::ProcessGroup& DistributedDataParallel::group() { return impl_->group; }

Variable DistributedDataParallel::call(const std::function<Variable()>& forward) {
  if (impl_->no_sync_depth == 0 && impl_->group.size() > 1) impl_->sync_buffers();
  Variable output = forward();
  if (impl_->options.find_unused_parameters && !impl_->options.static_graph && output.requires_grad()) impl_->look_at(output);
  return output;
}
Variable DistributedDataParallel::operator()(const Variable& x) { return call([&] { return impl_->module.call(x); }); }

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp) : ddp_(ddp) { ++ddp_.impl_->no_sync_depth; }
DistributedDataParallel::NoSync::~NoSync() { --ddp_.impl_->no_sync_depth; }

std::vector<std::vector<std::string>> DistributedDataParallel::buckets() const {
  std::vector<std::vector<std::string>> names;
  for (const Impl::Slot& slot : impl_->slots) names.push_back(slot.bucket.names);
  return names;
}

nn::State DistributedDataParallel::state() {
  nn::State state;
  for (auto& [name, tensor] : impl_->module.state()) state.emplace_back("module." + name, tensor);
  return state;
}
nn::LoadReport DistributedDataParallel::load_state(const nn::State& state, bool strict) { return impl_->module.load_state(without_wrapper(state), strict); }

nn::State without_wrapper(const nn::State& state, const std::string& prefix, bool* stripped) {
  const bool all = !state.empty() && std::all_of(state.begin(), state.end(), [&](const auto& entry) { return entry.first.starts_with(prefix); });
  if (stripped) *stripped = all;
  nn::State plain;
  for (const auto& [name, tensor] : state) plain.emplace_back(all ? name.substr(prefix.size()) : name, tensor);
  return plain;
}

}  // namespace lockstep::parallel
