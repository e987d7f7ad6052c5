// Variable: handles, leaves and hooks. The walk itself is in tape.cpp.
#include "autograd/variable.h"

#include <algorithm>
#include <ostream>

#include "autograd/tape.h"
#include "tensor/ops.h"

namespace lockstep {

namespace {

thread_local bool recording = true;
thread_local int anomaly_depth = 0;

Leaf& leaf_of(Variable::Impl& impl) { return static_cast<Leaf&>(*impl.node); }

std::atomic<int> next_hook_id{1};

}  // namespace

Variable::Impl::Impl(Tensor t) : tensor(std::move(t)) {}
Variable::Impl::~Impl() = default;

Variable::Variable(Tensor tensor) {
  if (tensor.defined()) impl_ = Ref<Impl>(new Impl(std::move(tensor)));
}

Variable::Variable(Tensor tensor, bool requires_grad) : Variable(std::move(tensor)) { requires_grad_(requires_grad); }

const Tensor& Variable::tensor() const {
  LOCKSTEP_CHECK(impl_, "[variable] expected a defined variable, got an undefined one");
  return impl_->tensor;
}

void Variable::set_tensor(Tensor tensor) {
  LOCKSTEP_CHECK(is_leaf(), "[set_tensor] expected a leaf, got the output of '", impl_->node->name(), "'");
  LOCKSTEP_CHECK(tensor.defined(), "[set_tensor] expected a defined tensor, got an undefined one");
  if (impl_->node) {
    Leaf& leaf = leaf_of(*impl_);
    Node::Output& output = leaf.outputs()[0];
    if (!(output.shape == tensor.shape()) || output.dtype != tensor.dtype() || tensor.device() != impl_->tensor.device()) leaf.grad = {};
    output.shape = tensor.shape();
    output.dtype = tensor.dtype();
  }
  impl_->tensor = std::move(tensor);
}

bool Variable::requires_grad() const { return impl_ && impl_->requires_grad; }

bool Variable::is_leaf() const {
  tensor();
  return !impl_->node || impl_->node->is_leaf();
}

Variable& Variable::requires_grad_(bool wanted) {
  LOCKSTEP_CHECK(is_leaf(), "[requires_grad_] expected a leaf, got the output of '", impl_->node->name(), "'; use detach()");
  LOCKSTEP_CHECK(!wanted || is_floating(dtype()), "[requires_grad_] only floating tensors can require gradients, got ", dtype());
  if (wanted && !impl_->node) impl_->node = Ref<Node>(new Leaf(impl_->tensor));
  impl_->requires_grad = wanted;
  return *this;
}

Variable Variable::detach() const { return Variable(tensor()); }

Tensor& Variable::grad() const {
  static thread_local Tensor none;
  tensor();
  if (impl_->retained_grad) return *impl_->retained_grad;
  LOCKSTEP_CHECK(is_leaf(), "[grad] expected a leaf, got the output of '", impl_->node->name(), "'; call retain_grad() on it before backward");
  if (impl_->node) return leaf_of(*impl_).grad;
  none = {};
  return none;
}

void Variable::retain_grad() {
  LOCKSTEP_CHECK(requires_grad(), "[retain_grad] expected a variable that requires grad");
  if (is_leaf() || impl_->retained_grad) return;
  impl_->retained_grad = std::make_shared<Tensor>();
  on_grad([kept = std::weak_ptr<Tensor>(impl_->retained_grad)](const Tensor& grad) {
    if (auto place = kept.lock()) *place = place->defined() ? add(*place, grad) : grad;
    return Tensor();
  });
}

void Variable::clear_grad() {
  if (impl_ && impl_->node && impl_->node->is_leaf()) leaf_of(*impl_).grad = {};
  if (impl_ && impl_->retained_grad) *impl_->retained_grad = {};
}

int Variable::on_grad(GradHook hook) {
  LOCKSTEP_CHECK(requires_grad(), "[on_grad] expected a variable that requires grad");
  return impl_->node->outputs()[impl_->output].add_hook({next_hook_id++, std::move(hook)});
}

int Variable::before_backward(std::function<void()> hook) {
  LOCKSTEP_CHECK(requires_grad(), "[before_backward] expected a variable that requires grad");
  return impl_->node->outputs()[impl_->output].add_hook({next_hook_id++, [fn = std::move(hook)](const Tensor&) { fn(); return Tensor(); }, false});
}

int Variable::on_grad_complete(LeafHook hook) {
  LOCKSTEP_CHECK(requires_grad() && is_leaf(), "[on_grad_complete] expected a leaf that requires grad");
  auto& hooks = leaf_of(*impl_).on_complete;
  hooks.emplace_back(next_hook_id++, std::move(hook));
  return hooks.back().first;
}

void Variable::remove_hook(int id) {
  if (!impl_ || !impl_->node) return;
  if (auto& hooks = impl_->node->outputs()[impl_->output].hooks) std::erase_if(*hooks, [id](const auto& hook) { return hook.id == id; });
  if (impl_->node->is_leaf()) std::erase_if(leaf_of(*impl_).on_complete, [id](const auto& hook) { return hook.first == id; });
}

std::ostream& operator<<(std::ostream& out, const Variable& variable) {
  if (!variable.defined()) return out << "undefined";
  out << variable.tensor();
  if (!variable.is_leaf()) return out << ", from " << variable.impl()->node->name();
  return variable.requires_grad() ? out << ", requires grad" : out;
}

bool NoGrad::grad_enabled() { return recording; }
bool NoGrad::set(bool enabled) { return std::exchange(recording, enabled); }

AnomalyMode::AnomalyMode() { ++anomaly_depth; }
AnomalyMode::~AnomalyMode() { --anomaly_depth; }
bool AnomalyMode::enabled() { return anomaly_depth > 0; }

}  // namespace lockstep
