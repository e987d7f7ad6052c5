// ZeRO 3: parameters, too, are kept as shards. A module's parameters are gathered before its forward and again before its backward,
// and freed after each.
//
//   4 ranks, modules a, b, c.  [a] whole a in memory  A' gradient of a, reduced to its owners
//
//   rank 0   gather a ─▶ [a] forward ─▶ free      [c] backward ─▶ C' ─▶ free
//                    gather b ─▶ [b] forward ─▶ free       gather b ─▶ [b] backward ─▶ B' ─▶ free ...
//                              gather c ─▶ [c] forward
//   kept        a/4 b/4 c/4 at every rank, at all times
//
// Hooks around a module's forward gather and free; a hook on its output gathers again when backward comes to it. It is freed when all
// its gradients are there, for nothing after that reads it, or when backward has passed the beginning of its call. The tape holds tensors on
// storage that is emptied and refilled under it.
//
// Vocabulary. Trace: the order of gathers in the last forward (or backward) that started at the same module; while the present one follows
// it, the next units are gathered ahead. Persistent: too small to be worth it, whole everywhere, as in stage 2. Live: whole now.
// Reuse distance: how many elements others will gather before this one is needed again.
//
// Cost: every parameter is gathered twice and reduced once: 3(N-1)/N times the model a step. Memory for psi parameters of 16 bits
// with Adam: (4 + 12) psi / N bytes, and what is live.
// Paper: Rajbhandari et al., SC 2020, section 5.3 (P_os+g+p).
#include <algorithm>
#include <map>

#include "autograd/tape.h"
#include "tensor/ops.h"
#include "zero/stage.h"

namespace lockstep::zero {
namespace {

/// Takes a number: what is recorded afterwards has a higher one.
struct Mark final : Node {
  Mark() : Node("mark", 0, 0) {}
  void run(Backward&) override {}
  void release_saved() override {}
};

struct Trace {
  std::vector<size_t> recorded, now;  // units
  bool follows = false;
};

/// A module that needs units.
struct Caller {
  nn::Module* module = nullptr;
  std::string name;
  std::vector<size_t> units;
  int hooks[2] = {0, 0};
  Trace traces[2];  // of forwards that start here, without and with gradients
};

struct Call {
  size_t caller = 0;
  uint64_t mark = 0;  // number before its first node
};

class Stage3 final : public Stage2 {
 public:
  using Stage2::Stage2;
  ~Stage3() override;
  void pin(size_t unit) override;
  void unpin(size_t unit) override;
  void register_external(nn::Module& module, const Variable& parameter) override;

 protected:
  void plan() override;
  void place(Unit& unit) override;
  Tensor weight(Unit& unit, const Piece& piece) override;
  void publish(Unit& unit) override;
  void pass_begins() override;
  void pass_ends() override;
  void gradient_arrived(Unit& unit) override { if (in_pass_) release(unit); }

 private:
  struct Claim { std::vector<size_t> members; int owner; std::string module; };
  void claim(nn::Module& module, const std::string& name, std::vector<bool>& taken, std::vector<Claim>& claims);
  void need(nn::Module& module, const std::string& name, const std::vector<size_t>& parameters);
  bool is_coarse(nn::Module& module) const { return options.module_size > 0 && module.parameter_count() <= options.module_size; }

  void enter(size_t caller);
  void leave(size_t caller, const Variable& output);
  void before_backward(size_t caller, uint64_t number, uint64_t mark);
  std::vector<size_t> pop(size_t depth);

  void fetch(Unit& unit);
  void arrive(Unit& unit);
  void release(Unit& unit);
  void release_all();
  void require(size_t unit);
  void fetch_ahead();
  bool is_worth_keeping(size_t unit) const;
  void start_trace(Trace& trace);
  void end_trace();

  std::vector<Caller> callers_;
  std::map<const nn::Module*, size_t> caller_of_;
  std::vector<Call> calls_;  // forwards that are running, innermost last
  Trace backward_;
  Trace* trace_ = nullptr;
  uint64_t pass_mark_ = 0;   // number at the beginning of the backward pass
  int64_t live_ = 0;         // elements of units that are whole now, without persistent ones
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // hooks on outputs may outlive this
};

Stage3::~Stage3() {
  for (Caller& c : callers_) for (const int hook : c.hooks) c.module->remove_hook(hook);
}

// --- units: what modules gather ---

std::vector<size_t> own_parameters(const Stage& stage, nn::Module& module) {
  nn::Fields fields;
  module.fields(fields);
  std::vector<size_t> own;
  for (const auto& entry : fields.entries) if (entry.parameter) own.push_back(stage.index_of(*entry.parameter));
  return own;
}

/// A module takes its own parameters, or all below it when it is small. A tied one belongs to the first that has it.
void Stage3::claim(nn::Module& module, const std::string& name, std::vector<bool>& taken, std::vector<Claim>& claims) {
  const bool coarse = is_coarse(module);
  std::vector<size_t> wanted;
  if (coarse) for (const Variable& v : module.parameters()) wanted.push_back(index_of(v));
  else wanted = own_parameters(*this, module);
  const std::vector<int> owner = owners();
  std::map<std::string, std::vector<size_t>> kinds;
  for (const size_t i : wanted) {
    if (taken[i]) continue;
    taken[i] = true;
    kinds[kind_of(i, owner[i])].push_back(i);
  }
  for (auto& [kind, members] : kinds) claims.push_back({members, owner[members[0]], name.empty() ? "(model)" : name});
  if (coarse) return;
  for (auto& [child_name, child] : module.children()) claim(*child, name.empty() ? child_name : name + "." + child_name, taken, claims);
}

void Stage3::plan() {
  // What persists is handled as in stage 2, and is not taken by a module.
  std::vector<bool> taken(parameters.size(), false);
  std::vector<size_t> small;
  std::vector<int64_t> sizes;
  std::vector<std::string> kinds;
  const std::vector<int> owner = owners();
  int64_t kept = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    const int64_t n = p.variable.numel();
    if (n > 0 && (n >= options.param_persistence_threshold || n > options.model_persistence_threshold - kept)) continue;
    kept += n;
    taken[i] = true;
    if (!p.trains()) continue;
    small.push_back(i);
    sizes.push_back(n);
    kinds.push_back(kind_of(i, owner[i]));
  }
  std::vector<Claim> claims;
  claim(module, "", taken, claims);
  std::reverse(claims.begin(), claims.end());
  for (const Claim& c : claims) add_unit(c.members, c.owner, c.module);
  for (Unit& unit : units) unit.persistent = false;
  for (const std::vector<size_t>& places : plan_units(sizes, kinds, options.reduce_bucket_size)) {
    std::vector<size_t> members;
    for (const size_t place : places) members.push_back(small[place]);
    add_unit(members, owner[members[0]]);
  }
  for (auto& [name, child] : module.named_modules()) {
    std::vector<size_t> read;
    if (is_coarse(*child)) for (const Variable& v : child->parameters()) read.push_back(index_of(v));
    else read = own_parameters(*this, *child);
    for (const Variable& v : child->reads()) read.push_back(index_of(v));
    need(*child, name, read);
  }
}

void Stage3::need(nn::Module& m, const std::string& name, const std::vector<size_t>& read) {
  std::vector<size_t> wanted;
  for (const size_t i : read) {
    const size_t u = parameters[i].unit;
    if (u != SIZE_MAX && !units[u].persistent && std::find(wanted.begin(), wanted.end(), u) == wanted.end()) wanted.push_back(u);
  }
  if (wanted.empty()) return;
  const auto [found, fresh] = caller_of_.try_emplace(&m, callers_.size());
  const size_t c = found->second;
  if (fresh) {
    callers_.push_back({.module = &m, .name = name});
    callers_[c].hooks[0] = m.before_forward([this, c](nn::Module&, const std::vector<Variable>&) { enter(c); });
    callers_[c].hooks[1] = m.after_forward([this, c](nn::Module&, const std::vector<Variable>&, const Variable& output) { leave(c, output); });
  }
  for (const size_t u : wanted) {
    auto& mine = callers_[c].units;
    if (std::find(mine.begin(), mine.end(), u) == mine.end()) mine.push_back(u);
  }
}

void Stage3::register_external(nn::Module& m, const Variable& parameter) {
  for (auto& [name, child] : module.named_modules()) if (child == &m) return need(m, name, {index_of(parameter)});
  fail(str("[register_external] expected a module inside ", module.kind(), ", got a ", m.kind(), " that is not"));
}

void Stage3::place(Unit& unit) {
  if (unit.persistent) return Stage1::place(unit);
  const MemoryScope scope(Memory::parameter);
  const dist::Range mine = shard(unit);
  unit.weights = empty({unit.layout.whole()}, {.dtype = unit.dtype, .device = device_});
  move_into_weights(unit);
  const Tensor shard = unit.weights.narrow(0, mine.begin, mine.size());
  if (unit.swapped) {
    on_files([&] { shard_of(unit).copy_(shard); });
  } else {
    const bool stays = options.offload_param.device == Offload::none;
    const MemoryScope home(stays ? Memory::parameter : Memory::offload);
    unit.shard = stays || device_.is_cpu() ? shard.clone() : shard.to(cpu);
  }
  unit.weights.storage()->empty(unit.tag.c_str());
}

Tensor Stage3::weight(Unit& unit, const Piece& piece) {
  return unit.persistent ? Stage1::weight(unit, piece) : shard_of(unit).narrow(0, piece.at, piece.range.size());
}

void Stage3::publish(Unit& unit) {
  if (unit.persistent) return Stage1::publish(unit);
  unit.active = 0;
  release(unit);
}

// --- whole and not ---

void Stage3::fetch(Unit& unit) {
  Storage& storage = *unit.weights.storage();
  const uint32_t version = storage.version();
  storage.refill();
  unit.gathered = true;
  live_ += unit.layout.whole();
  if (unit.layout.whole() == 0) return;
  const dist::CollectiveOptions o{.tag = unit.tag, .async = options.overlap_comm};
  const Tensor shard = shard_in_memory(size_t(&unit - units.data())).to(device_);
  if (unit.layout.owner < 0) {
    unit.fetch = unit.ranks->all_gather(unit.weights, shard, o);
  } else {
    if (unit.layout.owner == unit.ranks->rank()) unit.weights.copy_(shard);
    unit.fetch = unit.ranks->broadcast(unit.weights, unit.layout.owner, o);
  }
  storage.restore_version(version);  // the same bytes come back: what the tape saved is still right
}

/// Waits until the unit is whole.
void Stage3::arrive(Unit& unit) {
  unit.fetch.wait();
  if (unit.swapped) on_files([&] { swap_.reader->give_back(size_t(&unit - units.data())); });
}

void Stage3::release(Unit& unit) {
  if (!unit.gathered || unit.persistent || unit.pins > 0) return;
  arrive(unit);
  unit.fetch = {};
  unit.weights.storage()->empty(unit.tag.c_str());
  unit.gathered = false;
  unit.needed_from = 0;
  live_ -= unit.layout.whole();
}

void Stage3::release_all() { for (Unit& unit : units) release(unit); }

void Stage3::pin(size_t u) {
  Unit& unit = units[u];
  if (unit.persistent) return;
  ++unit.pins;
  if (!unit.gathered) fetch(unit);
  arrive(unit);
}

void Stage3::unpin(size_t u) {
  Unit& unit = units[u];
  if (!unit.persistent && --unit.pins == 0 && unit.active == 0) release(unit);
}

void Stage3::require(size_t u) {
  Unit& unit = units[u];
  if (trace_) {
    trace_->now.push_back(u);
    const size_t n = trace_->now.size();
    trace_->follows = trace_->follows && n <= trace_->recorded.size() && trace_->recorded[n - 1] == u;
  }
  if (!unit.gathered) fetch(unit);
  fetch_ahead();
  arrive(unit);
}

void Stage3::fetch_ahead() {
  if (!trace_ || !trace_->follows || !options.overlap_comm) return;
  int64_t room = options.prefetch_bucket_size;
  size_t k = trace_->now.size();
  for (; k < trace_->recorded.size(); ++k) {
    const size_t u = trace_->recorded[k];
    room -= units[u].layout.whole();
    if (room < 0) break;
    if (units[u].gathered) continue;
    if (live_ + units[u].layout.whole() > options.max_live_parameters) break;
    if (units[u].swapped && !swap_.reader->has(u) && swap_.reader->is_full()) return;
    fetch(units[u]);
  }
  for (; swap_.reader && k < trace_->recorded.size() && !swap_.reader->is_full(); ++k) {
    const size_t u = trace_->recorded[k];
    if (units[u].swapped && !units[u].gathered && !swap_.reader->has(u)) read_shard(u);
  }
}

void Stage3::start_trace(Trace& trace) {
  trace_ = &trace;
  trace.now.clear();
  trace.follows = !trace.recorded.empty();
}

void Stage3::end_trace() {
  if (trace_) trace_->recorded = std::move(trace_->now);
  trace_ = nullptr;
  if (!swap_.reader) return;
  for (const size_t u : swap_.reader->held()) if (!units[u].gathered) on_files([&] { swap_.reader->give_back(u); });  // read in vain; it may be changed before it is wanted
}

/// After a forward: whether it is needed again soon, in the rest of this forward or in the backward behind it.
bool Stage3::is_worth_keeping(size_t u) const {
  if (options.max_reuse_distance == 0 || live_ > options.max_live_parameters || !trace_ || !trace_->follows) return false;
  int64_t distance = 0;
  const auto found = [&](const std::vector<size_t>& next, size_t k) {
    for (; k < next.size() && distance <= options.max_reuse_distance; ++k) {
      if (next[k] == u) return true;
      distance += units[next[k]].layout.whole();
    }
    return false;
  };
  return found(trace_->recorded, trace_->now.size()) || (NoGrad::grad_enabled() && found(backward_.recorded, 0));
}

// --- forward ---

void Stage3::enter(size_t c) {
  // One that is on the list already was left by an exception.
  for (size_t k = 0; k < calls_.size(); ++k) if (calls_[k].caller == c) pop(k);
  const bool grad = NoGrad::grad_enabled();
  if (calls_.empty() && !in_pass_) start_trace(callers_[c].traces[grad]);
  // Checkpointing runs a piece again, forward and backward: what the one before it needed is done with.
  if (calls_.empty() && in_pass_) for (Unit& unit : units) if (unit.needed_from > pass_mark_) release(unit);
  calls_.push_back({c, grad ? Mark().number() : 0});
  for (const size_t u : callers_[c].units) ++units[u].active;
  for (const size_t u : callers_[c].units) require(u);
}

/// Ends the calls from a depth on; gives back their units.
std::vector<size_t> Stage3::pop(size_t depth) {
  std::vector<size_t> ended;
  for (; calls_.size() > depth; calls_.pop_back()) {
    for (const size_t u : callers_[calls_.back().caller].units) {
      units[u].active = std::max(0, units[u].active - 1);
      ended.push_back(u);
    }
  }
  return ended;
}

void Stage3::leave(size_t c, const Variable& output) {
  size_t depth = calls_.size();
  while (depth > 0 && calls_[depth - 1].caller != c) --depth;
  if (depth == 0) return;
  const uint64_t mark = calls_[depth - 1].mark;
  const std::vector<size_t> ended = pop(depth - 1);  // those above gave back no Variable, and were not seen to end
  const bool grad = NoGrad::grad_enabled();
  if (grad && output.defined() && output.requires_grad() && !output.is_leaf()) {
    const uint64_t number = output.impl()->node->number();
    if (number > mark) {  // made by this call
      Variable(output).before_backward([this, c, number, mark, exists = std::weak_ptr<int>(alive_)] {
        if (!exists.expired()) before_backward(c, number, mark);
      });
    }
  }
  if (in_pass_) return;  // checkpointing runs a forward again, and its backward follows at once
  for (const size_t u : ended) if (units[u].active == 0 && !is_worth_keeping(u)) release(units[u]);
  if (!calls_.empty()) return;
  end_trace();
  if (!grad) release_all();
}

// --- backward ---

/// The gradient of a call's output is complete: its nodes run next. Nodes run by descending number, so calls that began behind
/// this output are done.
void Stage3::before_backward(size_t c, uint64_t number, uint64_t mark) {
  if (!in_pass_) begin_pass();
  for (Unit& unit : units) if (unit.needed_from >= number) release(unit);
  for (const size_t u : callers_[c].units) {
    if (units[u].trains && units[u].waiting == 0) continue;  // its gradients are there
    require(u);
    units[u].needed_from = mark;
  }
}

void Stage3::pass_begins() {
  pass_mark_ = Mark().number();
  start_trace(backward_);
}

void Stage3::pass_ends() {
  end_trace();
  release_all();
}

}  // namespace

std::unique_ptr<Stage> make_stage3(nn::Module& module, std::vector<optim::Optimizer*> optimizers, const ZeroOptions& options, dist::ProcessGroup& group) {
  return std::make_unique<Stage3>(module, std::move(optimizers), options, group);
}

}  // namespace lockstep::zero
