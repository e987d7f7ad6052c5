#include "parallel/buckets.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tensor/ops.h"

namespace lockstep::parallel {

FlatGradients::FlatGradients(std::vector<Variable> parameters, dist::ProcessGroup* group) : parameters_(std::move(parameters)), group_(group), offsets_{0} {
  LOCKSTEP_CHECK(!parameters_.empty(), "[FlatGradients] expected at least one parameter, got none");
  for (const Variable& p : parameters_) {
    LOCKSTEP_CHECK(p.dtype() == parameters_[0].dtype() && p.device() == parameters_[0].device(), "[FlatGradients] expected parameters of ",
                   parameters_[0].dtype(), " on ", parameters_[0].device(), ", got ", p.dtype(), " on ", p.device());
    offsets_.push_back(offsets_.back() + p.numel());
  }
}

Tensor FlatGradients::view(const Tensor& flat, size_t i) const {
  return flat.narrow(0, offsets_[i], offsets_[i + 1] - offsets_[i]).view(parameters_[i].shape());
}

void FlatGradients::make_flat() {
  if (flat_.defined()) return;
  const MemoryScope scope(Memory::gradient);
  const TensorOptions options{.dtype = parameters_[0].dtype(), .device = parameters_[0].device()};
  // The tree sums into the memory of its first leaf, and the next step begins with it: one shared tensor per bucket is enough.
  flat_ = group_ && tree_.count() == 0 ? group_->shared_empty({numel()}, options.dtype, options.device) : empty({numel()}, options);
}

bool FlatGradients::take(size_t i, bool skip) {
  make_flat();
  const Tensor part = view(flat_, i);
  Tensor& grad = parameters_[i].grad();
  if (skip || !grad.defined()) {
    part.zero_();
    return false;
  }
  LOCKSTEP_CHECK(grad.dtype() == part.dtype() && grad.shape() == part.shape(), "[ddp] expected a gradient of ", part.dtype(), " ", part.shape(), ", got ",
                 grad.dtype(), " ", grad.shape(), "; change the dtype of a model (Module::to) before it is wrapped");
  const bool in_place = grad.storage() == part.storage() && grad.offset() == part.offset() && grad.is_contiguous();
  if (!in_place) part.copy_(grad);  // else the tape added to it where it lies
  grad = part;
  return true;
}

void FlatGradients::fold() {
  make_flat();
  tree_.add(std::move(flat_));
  flat_ = Tensor();
}

const Tensor& FlatGradients::sum() {
  if (tree_.count() > 0) {
    if (flat_.defined()) fold();
    flat_ = tree_.take();
  }
  make_flat();
  return flat_;
}

void FlatGradients::discard() {
  tree_ = {};
  flat_ = Tensor();
}

void FlatGradients::discard(size_t i) {
  for (const Tensor& level : tree_.levels()) if (level.defined()) view(level, i).zero_();
}

std::vector<std::vector<size_t>> plan_buckets(const std::vector<Variable>& parameters, int64_t cap, int64_t first_cap) {
  struct Open { std::vector<size_t> members; int64_t bytes = 0; bool first = true; };
  std::map<std::pair<int, std::string>, Open> open;  // by dtype and device
  std::vector<std::vector<size_t>> buckets;
  const auto close = [&](Open& o) {
    if (!o.members.empty()) buckets.push_back(std::exchange(o.members, {}));
    o.bytes = 0;
    o.first = false;
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Variable& p = parameters[i];
    Open& o = open[{int(p.dtype()), str(p.device())}];
    const int64_t bytes = p.numel() * size_of(p.dtype());
    if (!o.members.empty() && o.bytes + bytes > (o.first ? first_cap : cap)) close(o);
    o.members.push_back(i);
    o.bytes += bytes;
    if (o.bytes >= (o.first ? first_cap : cap)) close(o);
  }
  // What is left open, in the order of its first member.
  std::vector<Open*> rest;
  for (auto& [key, o] : open) if (!o.members.empty()) rest.push_back(&o);
  std::sort(rest.begin(), rest.end(), [](const Open* a, const Open* b) { return a->members[0] < b->members[0]; });
  for (Open* o : rest) close(*o);
  return buckets;
}

GradientAccumulator::GradientAccumulator(const std::vector<Variable>& parameters) {
  std::vector<Variable> trained;
  for (const Variable& p : parameters) if (p.requires_grad()) trained.push_back(p);
  LOCKSTEP_CHECK(!trained.empty(), "[GradientAccumulator] expected parameters that require grad, got none among ", parameters.size());
  constexpr int64_t cap = 25 << 20;  // pieces that caches and the allocator like; the bits do not depend on it
  for (const std::vector<size_t>& members : plan_buckets(trained, cap, cap)) {
    std::vector<Variable> bucket;
    for (const size_t i : members) bucket.push_back(trained[i]);
    buckets_.emplace_back(std::move(bucket));
    used_.emplace_back(members.size(), false);
  }
}

void GradientAccumulator::add() {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (size_t i = 0; i < buckets_[b].size(); ++i) {
      if (buckets_[b].take(i)) used_[b][i] = true;
      Variable(buckets_[b].parameter(i)).clear_grad();
    }
    buckets_[b].fold();
  }
  ++count_;
}

void GradientAccumulator::finish() {
  LOCKSTEP_CHECK(count_ > 0, "[GradientAccumulator] expected add() after a backward before finish(), got none");
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].sum();
    for (size_t i = 0; i < buckets_[b].size(); ++i) if (used_[b][i]) buckets_[b].point(i);
    used_[b].assign(used_[b].size(), false);
  }
  count_ = 0;
}

void GradientAccumulator::discard() {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].discard();
    used_[b].assign(used_[b].size(), false);
  }
  count_ = 0;
}

}  // namespace lockstep::parallel
