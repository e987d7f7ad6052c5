// Shared by all 1-bit optimizers: the step, masks, saved state, and compression errors. See optimizer.h.
#include "extensions/deepspeed/onebit/optimizer.h"

#include <algorithm>

#include "autograd/agreed.h"
#include "optim/optimizer.h"
#include "parallel/agreement.h"
#include "tensor/graph.h"
#include "tensor/ops.h"
#include "trace/trace.h"

namespace lockstep::onebit {

OneBitOptimizer::OneBitOptimizer(dist::ProcessGroup* group, const CompressedAllReduce::Options& options)
    : group_(group ? *group : dist::world()), compression_(options) {}

void OneBitOptimizer::start() {
  notice_parameters();
  for (const Variable& p : parameters()) {
    const Tensor dense = p.tensor().contiguous();
    group_.broadcast(dense, 0, {.tag = "parameters"});
    if (dense.storage() != p.tensor().storage()) p.tensor().copy_(dense);
  }
}

/// One line per group with its options, and one per parameter, for check_agreement().
std::vector<std::string> OneBitOptimizer::describe() {
  std::vector<std::string> lines;
  for (int g = 0; g < group_count(); ++g) {
    std::string line = str("group ", g);
    for (const auto& [option, value] : options(g)) line += str(", ", option, " ", *value);
    lines.push_back(std::move(line));
    for (const Variable& p : optim::Optimizer::parameters(g))
      lines.push_back(str(p.requires_grad() ? "parameter " : "frozen ", p.dtype(), " ", p.shape()));
  }
  return lines;
}

/// Looks for the trained parameters in every step, because parameters may be frozen and groups added. If the
/// trained parameters have changed, the compression errors are set to zero.
void OneBitOptimizer::notice_parameters() {
  std::vector<Variable> now;
  std::vector<int> groups;
  for (int g = 0; g < group_count(); ++g) {
    for (const Variable& p : optim::Optimizer::parameters(g)) {
      if (!p.requires_grad()) continue;
      now.push_back(p);
      groups.push_back(g);
    }
  }
  const auto same = [](const Variable& a, const Variable& b) { return a.impl() == b.impl(); };
  if (!trained_.empty() && std::equal(now.begin(), now.end(), trained_.begin(), trained_.end(), same)) return;
  LOCKSTEP_CHECK(!now.empty(), "[", name(), "] expected parameters that require grad, got none; unfreeze some");
  for (const Variable& p : now) {
    LOCKSTEP_CHECK(p.dtype() != f64, "[", name(), "] expected f32, bf16 or f16 parameters, got one of f64 ", p.shape(),
                   "; convert the model to f32");
  }
  parallel::check_agreement(name(), describe(), group_);
  trained_ = std::move(now);
  group_of_ = std::move(groups);
  mean_.reset();
  nonzero_.clear();
  compressed_.reset();
}

void OneBitOptimizer::check_gradients() {
  LOCKSTEP_CHECK(!Graph::is_capturing(), "[", name(),
                 "] a step cannot be captured: capture forward and backward, and call step() after replay()");
  for (size_t i = 0; i < trained_.size(); ++i) {
    const Variable& p = trained_[i];
    LOCKSTEP_CHECK(!mean_over_ranks(p), "[", name(),
                   "] exchanges gradients between ranks itself, but DistributedDataParallel has reduced them already: "
                   "train the model without that wrapper");
    LOCKSTEP_CHECK(p.checked_grad(name()).defined(), "[", name(),
                   "] expected a gradient for every parameter on every rank, got none for ", name_of(p, int(i)), " ",
                   p.shape(), "; freeze what is not used (requires_grad_(false))");
  }
}

OneBitStepReport OneBitOptimizer::step(const OneBitStepOptions& o) {
  const NoGrad no_grad;
  trace::memory();  // samples the memory while gradients exist
  const trace::Scope scope(name(), trace::Category::optimizer);
  notice_parameters();
  check_gradients();
  LOCKSTEP_CHECK(o.max_norm >= 0, "[", name(), "] expected max_norm >= 0, got ", o.max_norm);
  const int64_t step = steps_ + 1, sent = group_.traffic().sent;
  OneBitStepReport report{.compressed = !is_exact(step)};
  if (!report.compressed) {  // average as DDP does at the end of backward
    if (!mean_) mean_.emplace(trained_, &group_);
    mean_->add();
    mean_->finish();
  } else {
    mean_.reset();
  }
  double scale = o.grad_scale;
  if (o.max_norm > 0 || o.skip_nonfinite || o.want_norm) {
    report.norm = optim::grad_norm(trained_) * std::abs(o.grad_scale);
    if (report.compressed) {
      const Tensor square = full({1}, report.norm * report.norm, {.dtype = f64, .device = cpu});
      group_.all_reduce(square, {.op = dist::ReduceOp::mean, .tag = "norm"});
      report.norm = std::sqrt(square.item());
    }
    report.skipped = o.skip_nonfinite && !std::isfinite(report.norm);
    const double factor = o.max_norm / (report.norm + 1e-6);
    if (o.max_norm > 0 && !(factor >= 1)) scale *= factor;
  }
  if (!report.skipped) {
    if (report.compressed) compressed_step(step, scale);
    else exact_step(step, scale);
    steps_ = step;
    // After all updates, because parameters may share a storage.
    for (const Variable& p : trained_) state_of(p).known_version = p.tensor().storage()->version();
  }
  (report.compressed ? volume_.compressed_steps : volume_.exact_steps) += 1;
  (report.compressed ? volume_.compressed_bytes : volume_.exact_bytes) += group_.traffic().sent - sent;
  return report;
}

int64_t OneBitOptimizer::common(const char* option) const {
  const double first = get(0, option);
  for (int g = 1; g < group_count(); ++g) {
    LOCKSTEP_CHECK(get(g, option) == first, "[", name(), "] expected the same ", option, " in every group, got ", first,
                   " and ", get(g, option));
  }
  return int64_t(first);
}

void OneBitOptimizer::update_exactly(Slot& slot, const Tensor& grad, double grad_scale) {
  update(slot.group, slot.parameter, grad, *slot.state, slot.low, grad_scale);
  slot.low = {};  // update() has written it
  changed(slot);
}

void OneBitOptimizer::exact_step(int64_t, double grad_scale) {
  slots([&](Slot& slot, const Tensor& grad) { update_exactly(slot, grad, grad_scale); });
}

std::vector<OneBitOptimizer::Slot> OneBitOptimizer::slots(const std::function<void(Slot&, const Tensor&)>& fn) {
  std::vector<Slot> all;
  for (size_t i = 0; i < trained_.size(); ++i) {
    Prepared at = prepare(trained_[i]);
    const auto mask = masks_.find(trained_[i].impl().get());
    if (mask != masks_.end()) mask->second = mask->second.to(at.parameter.device());
    Slot& slot = all.emplace_back(Slot{.group = group_of_[i],
                                       .variable = trained_[i],
                                       .parameter = at.parameter,
                                       .low = at.low,
                                       .mask = mask == masks_.end() ? Tensor() : mask->second,
                                       .state = &at.state});
    if (!fn) continue;
    ++at.state.step;
    fn(slot, at.grad);
  }
  return all;
}

void OneBitOptimizer::changed(Slot& slot) {
  if (slot.low.defined()) slot.low.copy_(slot.parameter);
  written(slot.variable);
}

void OneBitOptimizer::check_has_variance(const Slot& slot) const {
  LOCKSTEP_CHECK(slot.state->tensors.count("exp_avg_sq"), "[", name(),
                 "] expected parameters that took part in exact steps, got one of shape ", slot.parameter.shape(),
                 " after ", steps_,
                 " steps that has no second moment; add groups and unfreeze parameters before the freeze");
}

CompressedAllReduce& OneBitOptimizer::compressed() {
  if (!compressed_) {
    std::vector<int64_t> sizes;
    for (const Variable& p : trained_) sizes.push_back(p.numel());
    compressed_ = std::make_unique<CompressedAllReduce>(std::move(sizes), group_, compression_);
  }
  return *compressed_;
}

void OneBitOptimizer::all_reduce(const std::vector<Slot>& slots, std::string_view tag) {
  std::vector<Tensor> sent;
  for (const Slot& slot : slots) sent.push_back(slot.sent);
  compressed()(sent, tag);
}

void OneBitOptimizer::set_exp_avg_mask(const Variable& parameter, const Tensor& mask) {
  LOCKSTEP_CHECK(mask.defined() && parameter.defined() && mask.shape() == parameter.shape(), "[", name(),
                 "] expected a mask of the parameter's shape ",
                 parameter.defined() ? str(parameter.shape()) : "(undefined)", ", got ",
                 mask.defined() ? str(mask.shape()) : "an undefined one", "; pass a mask and a parameter of one shape");
  const std::vector<Variable> all = parameters();
  LOCKSTEP_CHECK(std::any_of(all.begin(), all.end(), [&](const Variable& p) { return p.impl() == parameter.impl(); }),
                 "[", name(),
                 "] expected a mask for one of this optimizer's parameters, got one for another parameter, of shape ",
                 parameter.shape(), "; give the parameter that the optimizer has");
  const MemoryScope scope(Memory::optimizer);
  masks_[parameter.impl().get()] = mask.to(f32).contiguous();
}

void OneBitOptimizer::apply_masks(Slot& slot, const Tensor& momentum, bool frozen) {
  if (slot.mask.defined()) mul_(momentum, slot.mask);
  const auto second = slot.state->tensors.find("exp_avg_sq");
  if (second == slot.state->tensors.end() || momentum.numel() == 0) return;
  const void* key = slot.variable.impl().get();
  auto known = nonzero_.find(key);
  if (!frozen || known == nonzero_.end()) {
    const MemoryScope scope(Memory::optimizer);
    const Tensor nonzero = gt(second->second, zeros({1}, {.device = momentum.device()}));
    known = nonzero_.insert_or_assign(key, all(nonzero).item<bool>() ? Tensor() : nonzero.to(f32)).first;
  }
  if (known->second.defined()) mul_(momentum, known->second);
  if (!frozen) nonzero_.erase(known);
}

void OneBitOptimizer::load_state(const optim::OptimizerState& saved) {
  optim::Optimizer::load_state(saved);
  steps_ = 0;
  for (const Variable& p : parameters()) steps_ = std::max(steps_, state_of(p).step);
  nonzero_.clear();
  compressed_.reset();
}

Errors OneBitOptimizer::errors() const {
  return compressed_ ? Errors{compressed_->worker_errors(), compressed_->server_errors()} : Errors{};
}
int64_t OneBitOptimizer::error_size() { return compressed().padded(); }

void OneBitOptimizer::load_errors(const Errors& errors) {
  const CompressedAllReduce& own = compressed();
  const auto load = [&](const Tensor& to, const Tensor& from) {
    LOCKSTEP_CHECK(to.defined() == from.defined() && (!to.defined() || to.numel() == from.numel()), "[", name(),
                   "] expected errors of ", to.defined() ? to.numel() : 0, " elements, got ",
                   from.defined() ? from.numel() : 0, "; load the errors that the same number of ranks saved");
    if (to.defined()) to.copy_(from);
  };
  load(own.worker_errors(), errors.worker);
  load(own.server_errors(), errors.server);
}

}  // namespace lockstep::onebit
