// ZeRO stage 3: parameters, too, are kept as shards. A module's parameters are gathered before its forward and again
// before its backward, and freed after each.
//
//   modules a, b, c on every rank       forward                          backward
//
//   gather        all_gather            a    b    c                      c    b    a
//   compute                                  a    b    c                      c    b    a
//   gradients     reduce_scatter                                                   c    b    a
//   free                                          a    b    c                      c    b    a
//
//   kept at all times on each of 4 ranks: a/4, b/4, c/4
//
// Gathers run ahead of the computation (gather.h). Hooks around a module's forward gather and free; a hook on its
// output gathers again when backward reaches it. In backward a unit is freed when all its gradients have arrived,
// because nothing reads it after that, or when backward has passed the beginning of the call that needs it. Tensors on
// the tape keep their storage, which is emptied and refilled underneath them.
//
//   each rank sends      3 (N-1)/N times the model per micro-batch: gathers parameters twice, reduces gradients once
//   each rank holds      (4 + 12) Ψ/N bytes, for Ψ parameters in 16 bits with Adam; and the units that are whole
//   paper                Rajbhandari et al., SC 2020, section 5.3 (P_os+g+p)
#include <algorithm>
#include <map>

#include "autograd/mark.h"
#include "autograd/recorded_pass.h"
#include "tensor/ops.h"
#include "zero/gather.h"
#include "zero/sharded_optimizer.h"
#include "zero/stage.h"

namespace lockstep::zero {
namespace {

/// A module that needs units to be gathered for its forward.
struct Caller {
  nn::Module::Calls calls;
  std::string name;
  std::vector<size_t> units;
  int hooks[2] = {0, 0};
  Trace traces[2];  // gathers of forwards that begin here: [0] without, [1] with gradients
};

// A forward that is running.
struct Call {
  size_t caller = 0;
  uint64_t mark = 0;  // the tape's number before the call's first node
};

class Stage3 final : public Stage2 {
 public:
  using Stage2::Stage2;
  ~Stage3() override;
  void pin(size_t unit) override { gather_->pin(unit); }
  void unpin(size_t unit) override { gather_->unpin(unit); }
  bool is_pinned(size_t unit) const override { return gather_->states[unit].pins > 0; }
  void register_external(nn::Module& module, const Variable& parameter) override;
  const ShardStore* store() const override { return &gather_->store; }
  Tensor weight(Unit& unit, const Piece& piece) override;
  void publish(Unit& unit) override;
  int hooks_on(const nn::Module& module) const override { return caller_of_.count(&module) ? 2 : 0; }
  void release() override { gather_->release_all(); }

 private:
  void prepare() override;
  void place(Unit& unit) override;
  void pass_begins() override;
  void pass_ended() override;
  void complete(size_t unit) override { gather_->release(unit); }
  void need(nn::Module& module, const std::string& name, const std::vector<size_t>& parameters);
  size_t number_of(const Unit& unit) const { return size_t(&unit - units.data()); }
  bool is_coarse(nn::Module& module) const {
    return options.module_size > 0 && module.parameter_count() <= options.module_size;
  }

  void enter(size_t caller);
  void leave(size_t caller, const std::vector<Variable>& outputs);
  void before_backward(size_t caller, uint64_t number, uint64_t mark);
  std::vector<size_t> pop(size_t depth);
  void release_needed_from(uint64_t number);

  std::optional<Gather> gather_;
  std::vector<Caller> callers_;
  std::map<const nn::Module*, size_t> caller_of_;
  std::vector<Call> calls_;  // running forwards, innermost last
  Trace backward_;
  uint64_t pass_mark_ = 0;                                 // the tape's number at the beginning of the backward pass
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // output hooks may outlive this object and check it
};

Stage3::~Stage3() {
  for (Caller& c : callers_)
    for (const int hook : c.hooks) c.calls.remove_hook(hook);  // does nothing if the module is gone
  optimizer_.reset();  // waits for its tiles, which may be writing to gather_'s file
}

// --- units needed by modules ---

std::vector<size_t> own_parameters(const Stage& stage, nn::Module& module) {
  nn::Fields fields;
  module.fields(fields);
  std::vector<size_t> own;
  for (const auto& entry : fields.entries)
    if (entry.parameter) own.push_back(stage.index_of(*entry.parameter));
  return own;
}

void Stage3::prepare() {
  gather_.emplace(*this);
  for (auto& [name, child] : module.named_modules()) {
    std::vector<size_t> read;
    if (is_coarse(*child))
      for (const Variable& v : child->parameters()) read.push_back(index_of(v));
    else read = own_parameters(*this, *child);
    for (const Variable& v : child->reads()) read.push_back(index_of(v));
    need(*child, name, read);
  }
}

void Stage3::need(nn::Module& m, const std::string& name, const std::vector<size_t>& read) {
  std::vector<size_t> wanted;
  for (const size_t i : read) {
    const size_t u = parameters[i].unit;
    if (u != SIZE_MAX && !units[u].persistent && std::find(wanted.begin(), wanted.end(), u) == wanted.end())
      wanted.push_back(u);
  }
  if (wanted.empty()) return;
  const auto [found, fresh] = caller_of_.try_emplace(&m, callers_.size());
  const size_t c = found->second;
  if (fresh) {
    callers_.push_back({.name = name});
    callers_[c].hooks[0] = m.before_forward([this, c](nn::Module&, const std::vector<Variable>&) { enter(c); });
    callers_[c].hooks[1] = m.after_forward_all([this, c](nn::Module&, const std::vector<Variable>&,
                                                         const std::vector<Variable>& outputs) { leave(c, outputs); },
                                               false);
    callers_[c].calls = m.calls();
  }
  for (const size_t u : wanted) {
    auto& mine = callers_[c].units;
    if (std::find(mine.begin(), mine.end(), u) == mine.end()) mine.push_back(u);
  }
}

void Stage3::register_external(nn::Module& m, const Variable& parameter) {
  for (auto& [name, child] : module.named_modules())
    if (child == &m) return need(m, name, {index_of(parameter)});
  fail(str("[register_external] expected a module inside ", module.kind(), ", got a ", m.kind(), " that is not"));
}

void Stage3::place(Unit& unit) {
  if (unit.persistent) return Stage1::place(unit);
  const MemoryScope scope(Memory::parameter);
  unit.weights = empty({unit.layout.whole()}, {.dtype = unit.dtype, .device = device});
  move_into_weights(unit);
  gather_->keep_shard(number_of(unit));
}

Tensor Stage3::weight(Unit& unit, const Piece& piece) {
  return unit.persistent ? Stage1::weight(unit, piece)
                         : gather_->store.live(number_of(unit)).narrow(0, piece.at, piece.range.size());
}

void Stage3::publish(Unit& unit) {
  if (unit.persistent) return Stage1::publish(unit);
  gather_->states[number_of(unit)].active = 0;
  gather_->release(number_of(unit));
}

// --- forward ---

void Stage3::enter(size_t c) {
  // If an earlier call of this module still counts as running, an exception has ended it: remove it from calls_.
  for (size_t k = 0; k < calls_.size(); ++k)
    if (calls_[k].caller == c) pop(k);
  const bool grad = NoGrad::grad_enabled();
  if (calls_.empty() && !reducer_->in_pass()) gather_->start_trace(callers_[c].traces[grad]);
  // With activation checkpointing, backward reruns the forward part by part. When the rerun of a part begins, backward
  // through the part that was rerun before is complete, so the units of that earlier part can be freed.
  if (calls_.empty() && reducer_->in_pass()) release_needed_from(pass_mark_ + 1);
  calls_.push_back({c, grad ? Mark().number() : 0});
  for (const size_t u : callers_[c].units) ++gather_->states[u].active;
  for (const size_t u : callers_[c].units) gather_->require(u);
}

/// Ends the innermost running calls until `depth` calls are left. Returns the units of the ended calls.
std::vector<size_t> Stage3::pop(size_t depth) {
  std::vector<size_t> ended;
  for (; calls_.size() > depth; calls_.pop_back()) {
    for (const size_t u : callers_[calls_.back().caller].units) {
      gather_->states[u].active = std::max(0, gather_->states[u].active - 1);
      ended.push_back(u);
    }
  }
  return ended;
}

void Stage3::leave(size_t c, const std::vector<Variable>& outputs) {
  size_t depth = calls_.size();
  while (depth > 0 && calls_[depth - 1].caller != c) --depth;
  if (depth == 0) return;
  const uint64_t mark = calls_[depth - 1].mark;
  // End this call, and also calls inside it that returned no variables: leave() was not called for them.
  const std::vector<size_t> ended = pop(depth - 1);
  const bool grad = NoGrad::grad_enabled();
  for (const Variable& output : outputs) {
    if (!grad || !output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    const uint64_t number = output.impl()->node->number();
    if (number > mark) {  // the node was created by this call
      Variable(output).before_backward([this, c, number, mark, exists = std::weak_ptr<int>(alive_)] {
        if (!exists.expired()) before_backward(c, number, mark);
      });
    }
  }
  if (reducer_->in_pass()) return;  // a checkpoint's second forward: its backward follows at once
  for (const size_t u : ended)
    if (gather_->states[u].active == 0 && !gather_->is_worth_keeping(u, backward_)) gather_->release(u);
  if (!calls_.empty()) return;
  gather_->end_trace();
  if (!grad) gather_->release_all();
}

// --- backward ---

void Stage3::release_needed_from(uint64_t number) {
  for (size_t u = 0; u < units.size(); ++u)
    if (gather_->states[u].needed_from >= number) gather_->release(u);
}

/// Called when backward reaches a call: the gradient of its output is complete, and its nodes run next. Nodes run in
/// descending order of their numbers, so backward is done with calls that began after this output. Frees their units.
void Stage3::before_backward(size_t c, uint64_t number, uint64_t mark) {
  LOCKSTEP_CHECK(!RecordedPass::running(),
                 "[zero] stage 3 frees parameters before a recorded derivative (create_graph) can read them; use stage "
                 "2 or below for losses that contain gradients");
  if (!reducer_->in_pass()) reducer_->begin_pass();
  release_needed_from(number);
  for (const size_t u : callers_[c].units) {
    if (units[u].trains && reducer_->units[u].waiting == 0) continue;  // all its gradients have arrived
    gather_->require(u);
    gather_->states[u].needed_from = mark;
  }
}

void Stage3::pass_begins() {
  pass_mark_ = Mark().number();
  gather_->start_trace(backward_);
}

void Stage3::pass_ended() {
  gather_->end_trace();
  gather_->release_all();
}

}  // namespace

std::unique_ptr<Stage> make_stage3(nn::Module& module, std::vector<optim::Optimizer*> optimizers,
                                   const ZeroOptions& options, dist::ProcessGroup& group) {
  return std::make_unique<Stage3>(module, std::move(optimizers), options, group);
}

}  // namespace lockstep::zero
