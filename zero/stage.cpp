// What happens to gradients in one backward pass, in every stage:
//
//   gradient arrives ─▶ its unit is complete ─▶ copied into flat memory ─▶ [no_sync: leaf of the tree of this rank, done]
//                                               (.grad is given back)   ─▶ sum of the tree ─▶ reduce(), async, in one order
//   end of the pass  ─▶ wait for all units: unit.part is the sum over ranks of what this rank owns
//
// With overlap, units are reduced while backward goes on; without, at its end. The order of the collectives is the same on every rank,
// whatever the order of the gradients: the one in which rank 0 saw units complete in the first pass.
#include "zero/stage.h"

#include <algorithm>

#include "autograd/tape.h"
#include "parallel/agreement.h"
#include "tensor/ops.h"
#include "zero/init.h"

namespace lockstep::zero {

Stage::Stage(nn::Module& module, std::vector<optim::Optimizer*> all, const ZeroOptions& o, dist::ProcessGroup& group)
    : module(module), optimizers(std::move(all)), options(o), group(group) {
  for (const auto& [key, size] : {std::pair{"reduce_bucket_size", o.reduce_bucket_size}, {"max_live_parameters", o.max_live_parameters}, {"sub_group_size", o.sub_group_size}}) {
    LOCKSTEP_CHECK(size > 0, "[zero] expected ", key, " > 0, got ", size);
  }
  for (const auto& [key, size] : {std::pair{"prefetch_bucket_size", o.prefetch_bucket_size}, {"param_persistence_threshold", o.param_persistence_threshold},
                                  {"model_persistence_threshold", o.model_persistence_threshold}, {"max_reuse_distance", o.max_reuse_distance}, {"module_size", o.module_size}}) {
    LOCKSTEP_CHECK(size >= 0, "[zero] expected ", key, " >= 0, got ", size);
  }
  check(o.offload_optimizer, o.stage);
  check(o.offload_param, o.stage);
  check(o.aio);
  LOCKSTEP_CHECK(!o.communication_data_type || is_floating(*o.communication_data_type), "[zero] expected a floating communication_data_type, got ", *o.communication_data_type);
  for (const auto& p : module.named_parameters()) {
    parameters.push_back({.name = p.name, .variable = p.variable, .ranks = o.spread.names.count(p.name) ? o.spread.group : &group});
    const Device first = parameters[0].variable.device(), here = p.variable.device();
    LOCKSTEP_CHECK(here == first || (here.is_cpu() && first.is_cpu()), "[zero] expected all parameters on one device, got ", parameters[0].name, " on ", first, " and ", p.name, " on ", here);
    if (parameters.size() == 1 && !here.is_cpu()) device_ = here;
  }
  size_t trained = 0;
  for (optim::Optimizer* optimizer : optimizers) {
    LOCKSTEP_CHECK(optimizer, "[zero] expected optimizers, got null");
    LOCKSTEP_CHECK(!optimizer->communicates(), "[zero] ", optimizer->name(), " moves gradients between ranks itself and needs all of the model's: use it without ZeRO, in any stage");
    for (int g = 0; g < optimizer->group_count(); ++g) {
      for (const Variable& v : optimizer->parameters(g)) {
        Parameter& p = parameters[index_of(v)];
        LOCKSTEP_CHECK(!p.optimizer, "[zero] ", p.name, " is in two optimizers");
        if (!v.requires_grad()) continue;
        p.optimizer = optimizer;
        p.group = g;
      }
    }
  }
  std::vector<size_t> without;
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = parameters[i];
    if (p.variable.requires_grad() && !p.optimizer) without.push_back(i);
    if (!p.trains()) continue;
    ++trained;
    p.first_block = blocks_;
    blocks_ += norm_blocks(p.variable.numel());
  }
  LOCKSTEP_CHECK(without.empty(), "[zero] expected every parameter that requires grad in an optimizer, got ", without.size(), " that are in none: ", list(without),
                 "; freeze them (requires_grad_(false)) or give them to one");
  LOCKSTEP_CHECK(trained > 0, "[zero] expected a module with parameters that require grad, got none in ", module.kind());
  check_spread();
}

void Stage::check_spread() const {
  const Spread& spread = options.spread;
  if (spread.names.empty()) return;
  LOCKSTEP_CHECK(spread.group && group.size() % spread.group->size() == 0, "[zero] expected spread.group to be of ranks that have the same parameters, a part of the ", group.size(), " ranks of ", group.name(),
                 ", got ", spread.group ? str(spread.group->size(), " ranks") : "none");
  LOCKSTEP_CHECK(!options.init, "[zero] expected spread parameters to be built without a zero::Init scope, which cuts them over all ranks; build the model without");
  size_t known = 0;
  for (const Parameter& p : parameters) known += spread.names.count(p.name);
  for (const auto& b : module.named_buffers()) known += spread.names.count(b.name);
  LOCKSTEP_CHECK(known == spread.names.size(), "[zero] expected spread.names to be of the module's parameters and buffers, got ", spread.names.size(), " names, of which it has ", known);
}

void Stage::build() {
  std::vector<std::string> lines{str("options stage ", options.stage, ", overlap_comm ", options.overlap_comm, ", reduce_bucket_size ", options.reduce_bucket_size,
      ", reduce_scatter ", options.reduce_scatter, ", ignore_unused_parameters ", options.ignore_unused_parameters, ", communication_data_type ",
      options.communication_data_type ? std::string(name_of(*options.communication_data_type)) : "none", ", nonfinite ", int(options.nonfinite), ", prefetch_bucket_size ",
      options.prefetch_bucket_size, ", param_persistence_threshold ", options.param_persistence_threshold, ", model_persistence_threshold ",
      options.model_persistence_threshold, ", max_live_parameters ", options.max_live_parameters, ", max_reuse_distance ", options.max_reuse_distance, ", module_size ",
      options.module_size, ", init_sync ", options.init_sync, ", init ", options.init != nullptr, ", offload_optimizer ", name_of(options.offload_optimizer.device),
      ", offload_param ", name_of(options.offload_param.device), ", max_in_cpu ", options.offload_param.max_in_cpu, ", buffer_count ", options.offload_param.buffer_count)};
  const std::set<std::string>& spread = options.spread.names;
  std::vector<std::string> own;  // lines of what some ranks have
  for (std::string& line : parallel::describe_model(module, [&](const std::string& name) { return spread.count(name) > 0; })) lines.push_back(std::move(line));
  if (!spread.empty()) own = parallel::describe_model(module, [&](const std::string& name) { return spread.count(name) == 0; });
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    const std::string rule = p.trains() ? str(p.optimizer->name(), ", group ", p.group) : "none";
    if (is_spread(p)) lines.push_back(str("spread parameter at place ", i, " ", p.variable.dtype(), " ", p.variable.shape(), ", optimizer ", rule));
    else if (p.trains()) lines.push_back(str("optimizer of ", p.name, " ", rule));
  }
  parallel::check_agreement("zero", lines, group);
  if (!spread.empty()) parallel::check_agreement("zero", own, *options.spread.group);
  if (options.init) options.init->end();
  if (options.init_sync) {
    for (const Parameter& p : parameters) {
      LOCKSTEP_CHECK(!p.variable.tensor().storage()->is_empty() || options.init, "[zero] ", p.name, " has no memory; a model built in a zero::Init scope needs .init = &scope");
      if (!p.variable.tensor().storage()->is_empty()) p.ranks->broadcast(p.variable.tensor(), 0, {.tag = p.name});
    }
    for (auto& b : module.named_buffers()) (spread.count(b.name) ? *options.spread.group : group).broadcast(b.tensor, 0, {.tag = b.name});
  }
  int64_t largest = 0;
  for (const Parameter& p : parameters) if (p.trains()) largest = std::max(largest, p.variable.numel() * size_of(p.variable.dtype()));
  Ref<Storage> emptied = Storage::allocate(largest, device_);
  emptied->empty("gradients of ZeRO are its own until Zero::step(), use that in place of the optimizer's");
  placeholder_ = Tensor(emptied, 0, {0}, {1}, u8);
  plan();
  plan_offload();
  for (Unit& unit : units) place(unit);
  for (Parameter& p : parameters) if (p.unit == SIZE_MAX && p.variable.tensor().storage()->is_empty()) p.variable.set_tensor(value_of(p));
  for (size_t u = 0; u < units.size(); ++u) if (units[u].trains) order_.push_back(u);
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = parameters[i];
    if (!p.trains()) continue;
    p.hooks[0] = p.variable.on_grad([this, i](const Tensor&) { before_add(i); return Tensor(); });
    p.hooks[1] = p.variable.on_grad_complete([this, i](Tensor&) { arrived(i); });
  }
}

Stage::~Stage() {
  for (Parameter& p : parameters) {
    for (const int hook : p.hooks) if (hook) p.variable.remove_hook(hook);
    if (p.trains() && is_placeholder(p.variable.grad())) p.variable.clear_grad();
  }
}

// --- units ---

std::vector<int> Stage::owners() const {
  std::vector<int> owners(parameters.size(), -1);
  const auto assign = [&](const dist::ProcessGroup& ranks) {
    std::vector<size_t> uncut;
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].trains() || parameters[i].optimizer->is_elementwise() || parameters[i].ranks != &ranks) continue;
      uncut.push_back(i);
      sizes.push_back(parameters[i].variable.numel());
    }
    const std::vector<int> assigned = assign_owners(sizes, shards(ranks));
    for (size_t k = 0; k < uncut.size(); ++k) owners[uncut[k]] = assigned[k];
  };
  assign(group);
  if (!options.spread.names.empty()) assign(*options.spread.group);
  return owners;
}

std::string Stage::kind_of(size_t i, int owner) const {
  const Parameter& p = parameters[i];
  return str(p.variable.dtype(), p.trains() ? " trained" : " frozen", " of ", owner, is_spread(p) ? ", spread" : "");
}

/// Backward makes gradients in the reverse order of forward, roughly that of fields().
void Stage::plan() {
  const std::vector<int> owner = owners();
  std::vector<size_t> trained;
  std::vector<int64_t> sizes;
  std::vector<std::string> kinds;
  for (size_t i = parameters.size(); i-- > 0;) {
    const Parameter& p = parameters[i];
    if (!p.trains()) continue;
    trained.push_back(i);
    sizes.push_back(p.variable.numel());
    kinds.push_back(kind_of(i, owner[i]));
  }
  for (const std::vector<size_t>& places : plan_units(sizes, kinds, options.reduce_bucket_size)) {
    std::vector<size_t> members;
    for (const size_t place : places) members.push_back(trained[place]);
    add_unit(members, owner[members[0]]);
  }
}

void Stage::add_unit(std::vector<size_t> members, int owner, const std::string& of) {
  Unit unit;
  std::vector<int64_t> sizes;
  for (size_t place = 0; place < members.size(); ++place) {
    Parameter& p = parameters[members[place]];
    p.unit = units.size();
    p.place = place;
    sizes.push_back(p.variable.numel());
  }
  const Parameter &first = parameters[members.front()], &last = parameters[members.back()];
  unit.dtype = first.variable.dtype();
  unit.gradient_dtype = options.communication_data_type.value_or(unit.dtype);
  unit.trains = first.trains();
  unit.ranks = first.ranks;
  const int parts = shards(*unit.ranks);
  unit.layout = owner < 0 || parts == 1 ? lay_out(sizes, parts) : lay_out_at(sizes, parts, owner);
  unit.module = of;
  unit.tag = str("zero unit ", units.size(), of.empty() ? "" : " of module ", of, ", ", first.name, members.size() > 1 ? str(" to ", last.name) : "");
  for (size_t place = 0; place < members.size(); ++place) {
    const dist::Range range = unit.layout.owned(place, shard_number(unit));
    if (unit.trains && range.size() > 0) unit.pieces.push_back({members[place], range, unit.layout.offsets[place] + range.begin - shard(unit).begin});
  }
  unit.members = std::move(members);
  units.push_back(std::move(unit));
}

Tensor Stage::value_of(const Parameter& p) {
  const Tensor& tensor = p.variable.tensor();
  return tensor.storage()->is_empty() ? options.init->take(p.variable, p.name) : tensor;
}

/// Stage 0: they stay where they are.
void Stage::place(Unit& unit) {
  for (const size_t i : unit.members) {
    Parameter& p = parameters[i];
    if (p.variable.tensor().storage()->is_empty()) p.variable.set_tensor(value_of(p));
    LOCKSTEP_CHECK(p.variable.tensor().is_contiguous(), "[zero] expected row-major parameters, got ", p.name, " with strides ", p.variable.tensor().strides());
  }
}

Tensor Stage::weight(Unit&, const Piece& piece) {
  const Tensor& whole = parameters[piece.parameter].variable.tensor();
  return whole.view({whole.numel()}).narrow(0, piece.range.begin, piece.range.size());
}

/// Below stage 2 one flat tensor lasts; it is the first leaf of the tree, whose sum is made in its memory.
Tensor Stage::gradient_memory(Unit& unit) {
  const MemoryScope scope(Memory::gradient);
  const int64_t n = unit.layout.whole();
  if (unit.local.count() > 0) return empty({n}, {.dtype = unit.gradient_dtype, .device = device_});
  if (!unit.buffer.defined()) unit.buffer = unit.ranks->shared_empty({n}, unit.gradient_dtype, device_);
  return unit.buffer;
}

void Stage::reduce(Unit& unit, Tensor whole) {
  unit.part = whole;
  start(unit, unit.ranks->all_reduce(whole, {.tag = unit.tag, .async = options.overlap_comm}));
}

void Stage::start(Unit& unit, dist::Work work, std::function<void()> then) {
  unit.finish = [work = std::move(work), then = std::move(then)]() mutable {
    work.wait();
    if (then) then();
  };
  if (!options.overlap_comm) finish(unit);
}

// --- the placeholder: what .grad holds while gradients are collected, so that clearing it is noticed, and reading it an error ---

Tensor Stage::placeholder(const Parameter& p) const {
  return Tensor(placeholder_.storage(), 0, p.variable.shape(), contiguous_strides(p.variable.shape()), p.variable.dtype());
}
bool Stage::is_placeholder(const Tensor& grad) const { return grad.defined() && grad.storage() == placeholder_.storage(); }

void Stage::put_placeholders(Unit& unit) {
  for (const size_t i : unit.members) {
    Parameter& p = parameters[i];
    p.stashed = false;
    if (p.variable.numel() > 0) p.variable.grad() = placeholder(p);
    else p.variable.clear_grad();
  }
}

/// The tape is about to add to .grad (or, inside grad(), not to): it must not add to the placeholder.
void Stage::before_add(size_t i) {
  if (paused_) return;
  Parameter& p = parameters[i];
  if (!is_placeholder(p.variable.grad())) return;
  p.stashed = true;
  p.variable.clear_grad();
}

/// zero_grad() of a model or optimizer means: forget what was collected.
void Stage::notice_cleared() {
  const Parameter *cleared = nullptr, *kept = nullptr;
  for (const Unit& unit : units) {
    for (const size_t i : unit.members) {
      const Parameter& p = parameters[i];
      if (!unit.holds_gradients() || p.variable.numel() == 0) continue;
      (p.stashed || is_placeholder(p.variable.grad()) ? kept : cleared) = &p;
    }
  }
  if (!cleared) return;
  if (kept) fail_everywhere(str("[zero] the gradient of ", cleared->name, " was cleared between micro-batches, that of ", kept->name, " was not; clear all of them or none"));
  forget();
}

// --- one pass ---

void Stage::begin_pass() {
  struct End {  // of the pass, also when an exception is the end
    explicit End(Stage& stage) : stage(stage) {}
    ~End() { if (!done) stage.abandon_pass(); }
    Stage& stage;
    bool done = false;
  };
  const auto end = std::make_shared<End>(*this);
  after_backward([end] {
    end->stage.end_pass();
    end->done = true;
  });
  in_pass_ = true;
  syncing_ = no_sync_depth_ == 0;
  next_launch_ = 0;
  completed_.clear();
  notice_cleared();
  for (Unit& unit : units) unit.waiting = unit.trains ? int(unit.members.size()) : 0;
  for (Parameter& p : parameters) p.seen = false;
  pass_begins();
}

void Stage::pause(bool wanted) {
  LOCKSTEP_CHECK(!wanted || (!paused_ && !in_pass_ && options.stage < 3), "[zero] expected a pause between steps and below stage 3, got one in stage ", options.stage, in_pass_ ? ", inside a backward" : "");
  for (const Unit& unit : units) LOCKSTEP_CHECK(!wanted || !unit.holds_gradients(), "[zero] expected a pause between steps, got one after a backward; call step() or zero_grad() first");
  paused_ = wanted;
}

void Stage::arrived(size_t i) {
  if (paused_) return;
  if (!in_pass_) begin_pass();
  Parameter& p = parameters[i];
  if (p.seen) fail_everywhere(str("[zero] ", p.name, " got its gradient twice in one backward (a backward inside a backward?), expected once"));
  p.seen = p.used = true;
  Unit& unit = units[p.unit];
  if (--unit.waiting > 0) return;
  if (!ordered_) completed_.push_back(p.unit);
  settle(unit);
}

/// All gradients of this micro-batch are there.
void Stage::settle(Unit& unit) {
  if (!syncing_) {
    const Tensor whole = gradient_memory(unit);
    fill(unit, whole);
    unit.local.add(whole);
  } else if (options.overlap_comm) {
    launch();
  }
  gradient_arrived(unit);
}

/// Starts the reductions of the units that are complete, never out of order.
void Stage::launch() {
  for (; next_launch_ < order_.size() && units[order_[next_launch_]].waiting == 0; ++next_launch_) {
    Unit& unit = units[order_[next_launch_]];
    if (unit.part.defined()) unit.reduced.add(is_part_own() ? std::move(unit.part) : unit.part.clone());
    unit.part = Tensor();
    Tensor whole = gradient_memory(unit);
    fill(unit, whole);
    if (unit.local.count() > 0) {
      unit.local.add(std::move(whole));
      whole = unit.local.take();
    }
    reduce(unit, std::move(whole));
  }
}

/// Copies the gradients of a unit into flat memory, zeros where there is none, and gives theirs back.
void Stage::fill(Unit& unit, const Tensor& whole) {
  int64_t end = 0;
  const auto gap = [&](int64_t to) { if (to > end) whole.narrow(0, end, to - end).zero_(); };
  for (size_t place = 0; place < unit.members.size(); ++place) {
    const Parameter& p = parameters[unit.members[place]];
    const int64_t start = unit.layout.offsets[place], n = p.variable.numel();
    if (!p.seen || n == 0) continue;
    const Tensor& grad = p.variable.grad();
    LOCKSTEP_CHECK(grad.defined() && grad.shape() == p.variable.shape(), "[zero] expected a gradient of shape ", p.variable.shape(), " for ", p.name, ", got ",
                   grad.defined() ? str(grad.shape()) : "none");
    gap(start);
    whole.narrow(0, start, n).view(grad.shape()).copy_(grad);
    end = start + n;
  }
  gap(whole.numel());
  if (options.nonfinite != NonFinite::propagate && !all_finite(whole)) {
    for (const size_t i : unit.members) {
      if (parameters[i].seen && !all_finite(parameters[i].variable.grad())) first_bad_ = std::min(first_bad_, int64_t(i) * group.size() + rank());
    }
  }
  put_placeholders(unit);
}

void Stage::end_pass() {
  const bool trained = std::any_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.seen; });
  if (trained) {
    for (const size_t u : order_) if (!syncing_ && units[u].waiting > 0) settle(units[u]);
    for (Unit& unit : units) unit.waiting = 0;
    if (syncing_) launch();
    for (Unit& unit : units) finish(unit);
    if (syncing_ && !ordered_) agree_on_order();
    for (Unit& unit : units) if (unit.trains) put_placeholders(unit);
  }
  in_pass_ = false;
  pass_ends();
}

void Stage::agree_on_order() {
  ordered_ = true;
  std::vector<int64_t> order(completed_.begin(), completed_.end());
  for (const size_t u : order_) if (std::find(completed_.begin(), completed_.end(), u) == completed_.end()) order.push_back(int64_t(u));
  const Tensor agreed = Tensor::from(order, {int64_t(order.size())});
  group.broadcast(agreed, 0, {.tag = "zero order of units"});
  order = agreed.to_vector<int64_t>();
  order_.assign(order.begin(), order.end());
}

/// A pass ended by an exception: nothing of this step can be used.
void Stage::abandon_pass() noexcept {
  in_pass_ = false;
  for (Parameter& p : parameters) if (p.trains()) p.variable.clear_grad();
  try {
    forget();
    pass_ends();
  } catch (...) {}  // NOLINT: the group is over; the exception on its way says more
}

void Stage::forget() {
  for (Unit& unit : units) {
    try {
      finish(unit);
    } catch (...) {}  // NOLINT: what it would have brought is not wanted
    unit.local = {};
    unit.reduced = {};
    unit.part = Tensor();
  }
  for (Parameter& p : parameters) {
    p.used = false;
    if (p.trains() && is_placeholder(p.variable.grad())) p.variable.clear_grad();
  }
  first_bad_ = std::numeric_limits<int64_t>::max();
}

/// Every rank raises this, wherever it waits.
void Stage::fail_everywhere(const std::string& message) {
  if (group.size() == 1) fail(message);
  throw group.control().report(dist::Fault::rank_failed, group.world_rank(rank()), message);
}

size_t Stage::index_of(const Variable& variable) const {
  for (size_t i = 0; i < parameters.size(); ++i) if (parameters[i].variable.impl() == variable.impl()) return i;
  fail(str("[zero] a parameter of shape ", variable.defined() ? str(variable.shape()) : "(undefined)", " is not one of the module's ", parameters.size()));
}

std::string Stage::list(const std::vector<size_t>& indices) const {
  std::string names;
  for (size_t k = 0; k < indices.size() && k < 20; ++k) names += (k ? ", " : "") + parameters[indices[k]].name;
  return indices.size() > 20 ? str(names, " and ", indices.size() - 20, " more") : names;
}

}  // namespace lockstep::zero
