// Flat memory for gradients (reducer.h), and dense buckets. See buckets.h.
#include "parallel/buckets.h"

#include <algorithm>
#include <map>

#include "tensor/graph.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

Packed::Packed(const std::vector<Tensor>& tensors) {
  if (tensors.empty()) return;
  std::vector<Tensor> rows;
  for (const Tensor& tensor : tensors) rows.push_back(tensor.reshape({tensor.numel()}));
  whole = cat(rows);
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    parts.push_back(whole.narrow(0, at, tensor.numel()).view(tensor.shape()));
    at += tensor.numel();
  }
}

FlatGradients::FlatGradients(std::vector<Variable> parameters, dist::ProcessGroup* group, std::optional<Offsets> layout)
    : parameters_(std::move(parameters)), group_(group), layout_(layout.value_or(Offsets{})) {
  const Variable& first = parameters_.at(0);
  dtype_ = first.dtype();
  for (const Variable& p : parameters_) {
    if (layout) break;
    LOCKSTEP_CHECK(p.dtype() == first.dtype() && p.device() == first.device(),
                   "[FlatGradients] expected parameters of ", first.dtype(), " on ", first.device(), ", got ",
                   p.dtype(), " on ", p.device(), "; make one FlatGradients for each dtype and device");
    layout_.offsets.push_back(layout_.whole);
    layout_.whole += p.numel();
  }
  if (!layout) layout_.options = {.dtype = first.dtype(), .device = first.device()};
}

Tensor FlatGradients::view(const Tensor& flat, size_t i) const {
  return flat.narrow(0, layout_.offsets[i], parameters_[i].numel()).view(parameters_[i].shape());
}

void FlatGradients::offer(size_t i) {
  const Tensor& grad = parameters_[i].grad();
  if (size() != 1 || (group_ && group_->size() > 1) || !grad.defined() || grad.numel() != numel() ||
      grad.dtype() != layout_.options.dtype || !grad.is_contiguous() || !grad.is_exclusive())
    return;
  offered_ = parameters_[i].checked_grad("reducer").view({numel()});
}

Tensor FlatGradients::own_memory() {
  if (offered_.defined()) return std::exchange(offered_, {});
  const MemoryScope scope(Memory::gradient);
  if (tree_.count() > 0) return empty({numel()}, layout_.options);
  if (!buffer_.defined())
    buffer_ = group_ ? group_->shared_empty({numel()}, layout_.options.dtype, layout_.options.device)
                     : empty({numel()}, layout_.options);
  return buffer_;
}

void FlatGradients::open(Tensor memory) {
  flat_ = std::move(memory);
  for (size_t i = 0; i < size(); ++i) {
    const int64_t end = layout_.offsets[i] + parameters_[i].numel(),
                  next = i + 1 < size() ? layout_.offsets[i + 1] : numel();
    if (next > end) flat_.narrow(0, end, next - end).zero_();
  }
}

bool FlatGradients::take(size_t i, bool skip) {
  if (!is_open()) open(own_memory());
  const Tensor part = view(flat_, i);
  Tensor& grad = parameters_[i].grad();
  if (skip || !grad.defined()) {
    part.zero_();
    return false;
  }
  LOCKSTEP_CHECK(grad.dtype() == dtype_, "[reducer] expected a gradient of ", dtype_, ", got ", grad.dtype(),
                 "; change the dtype of a model (Module::to) before it is wrapped");
  parameters_[i].checked_grad("reducer");
  const bool in_place = grad.storage() == part.storage() && grad.offset() == part.offset() && grad.is_contiguous();
  if (!in_place) part.copy_(grad);  // else the tape added to the flat memory directly
  grad = part;
  return true;
}

void FlatGradients::fold() {
  LOCKSTEP_CHECK(is_open(),
                 "[FlatGradients] expected gradients to fold, got none; call take() for every parameter first");
  tree_.add(std::exchange(flat_, {}));
}

Tensor FlatGradients::sum() {
  if (tree_.count() == 0) return std::exchange(flat_, {});
  if (is_open()) fold();
  return tree_.take();
}

void FlatGradients::discard() {
  tree_ = {};
  flat_ = Tensor();
}

void FlatGradients::discard(size_t i) {
  for (const Tensor& level : tree_.levels())
    if (level.defined()) view(level, i).zero_();
}

std::vector<std::vector<size_t>> plan_units(const std::vector<int64_t>& sizes, const std::vector<std::string>& kinds,
                                            int64_t cap, int64_t first_cap) {
  LOCKSTEP_CHECK(cap > 0 && sizes.size() == kinds.size(),
                 "[plan_units] expected cap > 0 and one kind for each size, got cap ", cap,
                 "; check the cap and the lengths of both lists");
  struct Open {
    std::vector<size_t> members;
    int64_t size = 0, cap = 0;
  };
  std::map<std::string, Open> open;
  std::vector<std::vector<size_t>> units;
  const auto close = [&](Open& o) {
    if (!o.members.empty()) units.push_back(std::move(o.members));
    o = {.members = {}, .cap = cap};
  };
  for (size_t i = 0; i < sizes.size(); ++i) {
    Open& o = open.try_emplace(kinds[i], Open{.members = {}, .cap = first_cap > 0 ? first_cap : cap}).first->second;
    if (!o.members.empty() && o.size + sizes[i] > o.cap) close(o);
    o.members.push_back(i);
    o.size += sizes[i];
    if (o.size >= o.cap) close(o);
  }
  std::vector<Open*> rest;  // units that are not full, sorted by their first member
  for (auto& [kind, o] : open)
    if (!o.members.empty()) rest.push_back(&o);
  std::sort(rest.begin(), rest.end(), [](const Open* a, const Open* b) { return a->members[0] < b->members[0]; });
  for (Open* o : rest) close(*o);
  return units;
}

std::vector<std::vector<size_t>> plan_buckets(const std::vector<Variable>& parameters, int64_t cap, int64_t first_cap) {
  std::vector<int64_t> bytes;
  std::vector<std::string> kinds;
  for (const Variable& p : parameters) {
    bytes.push_back(p.numel() * size_of(p.dtype()));
    kinds.push_back(str(p.dtype(), " on ", p.device()));
  }
  return plan_units(bytes, kinds, cap, first_cap);
}

void Buckets::cut(const std::vector<size_t>& order, int64_t cap, int64_t first_cap, bool collective) {
  std::vector<Variable> variables;
  for (const size_t i : order) variables.push_back(reducer_->parameters[i].variable);
  std::vector<Reducer::Unit> units;
  for (const std::vector<size_t>& places : plan_buckets(variables, cap, first_cap)) {
    Reducer::Unit& unit = units.emplace_back();
    std::vector<Variable> members;
    for (const size_t i : places) members.push_back(variables[i]), unit.members.push_back(order[i]);
    // Ranks of a host share the memory of buckets. On devices other than the CPU, sharing memory is collective.
    const bool is_here = members[0].device().is_cpu();
    unit.gradients = FlatGradients(std::move(members), is_here || collective ? mean_ : nullptr);
    if (!is_here && collective && mean_->size() > 1) unit.gradients.own_memory();
  }
  sums_.assign(units.size(), Tensor());
  reducer_->cut(std::move(units));
}

std::function<void()> Buckets::start(size_t b, const Tensor& sum) {
  sums_[b] = sum;
  if (!mean_) return [] {};
  return
      [work = mean_->all_reduce(
           sum, {.op = dist::ReduceOp::mean, .tag = str("gradients ", b), .async = true})]() mutable { work.wait(); };
}

void Buckets::finished() {
  const std::vector<bool> used = agree_on_used();
  for (size_t i = 0; i < used.size(); ++i) {
    Reducer::Parameter& p = reducer_->parameters[i];
    if (p.unit == SIZE_MAX) continue;
    if (used[i]) p.variable.grad() = reducer_->units[p.unit].gradients.view(sums_[p.unit], p.place);
    else p.variable.clear_grad();
    p.used = p.held = false;
  }
  forgotten();
}

GradientSum::GradientSum(const std::vector<Variable>& parameters, dist::ProcessGroup* mean, dist::ProcessGroup* agree)
    : Buckets(mean), agree_(agree) {
  std::vector<Reducer::Parameter> all;
  std::vector<size_t> trained;
  for (const Variable& p : parameters) {
    if (p.requires_grad()) trained.push_back(all.size());
    all.push_back({.name = str("a parameter of shape ", p.shape()), .variable = p});
  }
  LOCKSTEP_CHECK(!trained.empty(), "[GradientSum] expected parameters that require grad, got none among ", all.size(),
                 "; unfreeze the parameters to train");
  listen({.name = "GradientSum", .hooks = false, .shows = true}, std::move(all));
  constexpr int64_t cap = 25 << 20;  // large enough for collectives, small enough for caches; does not change the bits
  cut(trained, cap, cap, false);
}

void GradientSum::finish() {
  LOCKSTEP_CHECK(count() > 0,
                 "[GradientSum] expected add() after a backward, got finish() without it; call add() first");
  reducer_->reduce();
}

std::vector<bool> GradientSum::agree_on_used() {
  std::vector<bool> used;
  for (const Reducer::Parameter& p : reducer_->parameters) used.push_back(p.used);
  if (!agree_) return used;
  if (Graph::is_recording()) {  // ranks cannot be asked inside a recording: use the previous answer
    LOCKSTEP_CHECK(
        used == used_here_,
        "[GradientSum] a sum can only be captured if the previous sum had gradients for the same parameters; "
        "make such a sum before the capture");
    return used_anywhere_;
  }
  used_here_ = used;
  return used_anywhere_ = used_by_any(used, *agree_);
}

}  // namespace lockstep::parallel
