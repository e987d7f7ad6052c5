// Variable: handles, leaves and hooks, and the functions that start a backward pass (tape.cpp).
#include "autograd/variable.h"

#include <ostream>

#include "autograd/split_backward.h"
#include "autograd/tape.h"
#include "tensor/complex.h"
#include "tensor/ops.h"

namespace lockstep {

namespace {

thread_local bool recording = true;
thread_local int anomaly_depth = 0;

Leaf& leaf_of(Variable::Impl& impl) { return static_cast<Leaf&>(*impl.node); }

std::atomic<int> next_hook_id{1};

/// Returns the start of the pass `op`: the edge to `root`, and its gradient, which is `gradient`, or 1 if that is
/// undefined. Error if `root` does not require grad, or `gradient` does not fit it.
tape::GradAt start(const char* op, const Variable& root, const Variable& gradient) {
  LOCKSTEP_CHECK(root.requires_grad(), "[", op,
                 "] this value does not require grad; was it computed in a NoGrad scope, or from data only? Compute it "
                 "outside such a scope, from a variable that requires grad");
  LOCKSTEP_CHECK(gradient.defined() || root.numel() == 1, "[", op, "] expected a gradient for a result of shape ",
                 root.shape(), " (only a result of one element may omit it), got none; pass one");
  LOCKSTEP_CHECK(gradient.defined() || !is_complex(root.dtype()), "[", op, "] expected a gradient for a result of ",
                 root.dtype(), " (only a real result may omit it), got none; pass one");
  LOCKSTEP_CHECK(!gradient.defined() || (gradient.shape() == root.shape() && gradient.dtype() == root.dtype()), "[", op,
                 "] expected a gradient of shape ", root.shape(), " and ", root.dtype(), ", got ", gradient.shape(),
                 " and ", gradient.dtype(), "; convert or reshape it");
  LOCKSTEP_CHECK(!gradient.defined() || gradient.device() == root.device(), "[", op, "] expected a gradient on ",
                 root.device(), ", got one on ", gradient.device(), " (move with .to(device))");
  return {tape::edge_of(root), gradient.defined() ? gradient : Variable(ones_like(root.tensor()))};
}

}  // namespace

Variable::Impl::Impl(Tensor t) : tensor(std::move(t)) {}
Variable::Impl::~Impl() = default;

Variable::Variable(Tensor tensor) {
  if (tensor.defined()) impl_ = Ref<Impl>(new Impl(std::move(tensor)));
}

Variable::Variable(Tensor tensor, bool requires_grad) : Variable(std::move(tensor)) { requires_grad_(requires_grad); }

const Tensor& Variable::tensor() const {
  LOCKSTEP_CHECK(
      impl_,
      "[variable] expected a variable with a tensor, got an undefined one, such as Variable() or an absent bias; "
      "give it a tensor, or ask defined() first");
  return impl_->tensor;
}

void Variable::set_tensor(Tensor tensor) {
  LOCKSTEP_CHECK(is_leaf(), "[set_tensor] expected a leaf, got the output of '", impl_->node->name(),
                 "'; call it on a parameter, or on detach()");
  LOCKSTEP_CHECK(tensor.defined(), "[set_tensor] expected a defined tensor, got an undefined one; create it first");
  if (impl_->node) {
    Leaf& leaf = leaf_of(*impl_);
    Node::Output& output = leaf.outputs()[0];
    if (!(output.shape == tensor.shape()) || output.dtype != tensor.dtype() ||
        tensor.device() != impl_->tensor.device())
      leaf.grad = {};
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
  LOCKSTEP_CHECK(is_leaf(), "[requires_grad_] expected a leaf, got the output of '", impl_->node->name(),
                 "'; use detach()");
  LOCKSTEP_CHECK(!wanted || is_floating(dtype()) || is_complex(dtype()),
                 "[requires_grad_] expected a floating or complex dtype, got ", dtype(), "; convert with .to(f32)");
  if (wanted && !impl_->node) impl_->node = Ref<Node>(new Leaf(impl_->tensor));
  impl_->requires_grad = wanted;
  return *this;
}

Variable Variable::detach() const { return Variable(tensor()); }

Tensor& Variable::grad() const {
  static thread_local Tensor none;
  tensor();
  if (impl_->retained_grad) return *impl_->retained_grad;
  LOCKSTEP_CHECK(is_leaf(), "[grad] expected a leaf, got the output of '", impl_->node->name(),
                 "'; call retain_grad() on it before backward");
  if (impl_->node) return leaf_of(*impl_).grad;
  none = {};
  return none;
}

void Variable::retain_grad() {
  LOCKSTEP_CHECK(requires_grad(), "[retain_grad] expected a variable that requires grad; call requires_grad_() first");
  if (is_leaf() || impl_->retained_grad) return;
  impl_->retained_grad = std::make_shared<Tensor>();
  on_grad([kept = std::weak_ptr<Tensor>(impl_->retained_grad)](const Tensor& grad) {
    if (auto place = kept.lock()) *place = place->defined() ? add(*place, grad) : grad;
    return Tensor();
  });
}

const Tensor& Variable::checked_grad(const char* op) const {
  const Tensor& grad = this->grad();
  LOCKSTEP_CHECK(!grad.defined() || (grad.shape() == shape() && grad.dtype() == dtype() && grad.device() == device()),
                 "[", op, "] expected a gradient like its parameter, ", dtype(), " ", shape(), " on ", device(),
                 ", got ", grad.dtype(), " ", grad.shape(), " on ", grad.device(),
                 "; set .grad to a tensor like the parameter, or clear it");
  return grad;
}

void Variable::clear_grad() {
  if (impl_ && impl_->node && impl_->node->is_leaf()) leaf_of(*impl_).grad = {}, leaf_of(*impl_).recorded_grad = {};
  if (impl_ && impl_->retained_grad) *impl_->retained_grad = {};
}

void Node::Output::add_hook(Hook hook) {
  if (!hooks) hooks = std::make_unique<std::vector<Hook>>();
  hooks->push_back(std::move(hook));
}

void Node::Output::run_hooks() {
  // Iterate by index and copy each hook, because a hook may add or remove hooks.
  for (size_t i = 0; i < hooks->size(); ++i) {
    const GradHook hook = (*hooks)[i].call;
    Tensor changed = hook(grad.plain);
    if (!changed.defined()) continue;
    LOCKSTEP_CHECK(changed.shape() == shape && changed.dtype() == dtype, "[on_grad] expected the hook to return shape ",
                   shape, " and ", dtype, ", got ", changed.shape(), " and ", changed.dtype(), "; keep both there");
    grad.plain = std::move(changed);
  }
}

int Variable::on_grad(GradHook hook) {
  LOCKSTEP_CHECK(requires_grad(), "[on_grad] expected a variable that requires grad; call requires_grad_() first");
  const int id = next_hook_id++;
  impl_->node->outputs()[impl_->output].add_hook({id, std::move(hook)});
  return id;
}

int Variable::before_backward(std::function<void()> hook) {
  LOCKSTEP_CHECK(requires_grad(),
                 "[before_backward] expected a variable that requires grad, got another; call requires_grad_() first");
  const auto call = [hook = std::move(hook)](const Tensor&) { return hook(), Tensor(); };
  const int id = next_hook_id++;
  impl_->node->outputs()[impl_->output].add_hook({id, call, false});
  return id;
}

int Variable::on_grad_complete(LeafHook hook) {
  LOCKSTEP_CHECK(requires_grad() && is_leaf(),
                 "[on_grad_complete] expected a leaf that requires grad, got another variable; use on_grad() for it");
  auto& hooks = leaf_of(*impl_).on_complete;
  hooks.emplace_back(next_hook_id++, std::move(hook));
  return hooks.back().first;
}

void Variable::remove_hook(int id) {
  if (!impl_ || !impl_->node) return;
  if (auto& hooks = impl_->node->outputs()[impl_->output].hooks)
    std::erase_if(*hooks, [id](const auto& hook) { return hook.id == id; });
  if (impl_->node->is_leaf())
    std::erase_if(leaf_of(*impl_).on_complete, [id](const auto& hook) { return hook.first == id; });
}

std::ostream& operator<<(std::ostream& out, const Variable& variable) {
  if (!variable.defined()) return out << "undefined";
  out << variable.tensor();
  if (!variable.is_leaf()) return out << ", from " << variable.impl()->node->name();
  return variable.requires_grad() ? out << ", requires grad" : out;
}

Variable Variable::recorded_grad() const {
  LOCKSTEP_CHECK(is_leaf(), "[recorded_grad] expected a leaf, got the output of '", impl_->node->name(),
                 "'; use grad() with create_graph");
  return impl_->node ? leaf_of(*impl_).recorded_grad : Variable();
}

void Variable::backward(const Tensor& gradient, bool retain_graph) const {
  backward({.gradient = gradient, .retain_graph = retain_graph});
}

void Variable::backward(const BackwardOptions& o) const {
  tape::run_pass("backward", start("backward", *this, o.gradient), nullptr, o.retain_graph, o.create_graph);
}

std::vector<Variable> grad(const std::vector<Variable>& outputs, const std::vector<Variable>& inputs,
                           const GradOptions& options) {
  LOCKSTEP_CHECK(options.grad_outputs.empty() || options.grad_outputs.size() == outputs.size(),
                 "[grad] expected a grad_output for each of ", outputs.size(), " outputs, got ",
                 options.grad_outputs.size());
  std::vector<tape::GradAt> starts;
  for (size_t i = 0; i < outputs.size(); ++i)
    starts.push_back(start("grad", outputs[i], options.grad_outputs.empty() ? Variable() : options.grad_outputs[i]));
  std::vector<Edge> wanted;
  for (const Variable& input : inputs) {
    LOCKSTEP_CHECK(input.requires_grad(), "[grad] expected every input to require grad, input ", wanted.size(),
                   " does not; call requires_grad_() on it before the forward, or leave it out");
    wanted.push_back(tape::edge_of(input));
  }
  const Variable root = starts.size() == 1 ? Variable() : tape::join(std::move(starts));
  std::vector<Variable> grads = tape::run_pass("grad", root.defined() ? start("grad", root, {}) : std::move(starts[0]),
                                               &wanted, options.retain_graph, options.create_graph);
  for (size_t i = 0; i < grads.size(); ++i)
    LOCKSTEP_CHECK(grads[i].defined() || options.allow_unused, "[grad] no output depends on input ", i,
                   "; leave it out, or pass allow_unused = true for an undefined gradient");
  return grads;
}

std::vector<Tensor> gradients(const Variable& output, const std::vector<Variable>& inputs, const Tensor& gradient,
                              bool retain_graph) {
  const GradOptions options{.grad_outputs = {gradient}, .retain_graph = retain_graph, .allow_unused = true};
  std::vector<Tensor> grads;
  for (const Variable& grad : grad(output, inputs, options))
    grads.push_back(grad.defined() ? std::move(grad.impl()->tensor) : Tensor());
  return grads;
}

bool NoGrad::grad_enabled() { return recording; }
bool NoGrad::set(bool enabled) { return std::exchange(recording, enabled); }

AnomalyMode::AnomalyMode() { ++anomaly_depth; }
AnomalyMode::~AnomalyMode() { --anomaly_depth; }
bool AnomalyMode::enabled() { return anomaly_depth > 0; }
void AnomalyMode::check(const Tensor& tensor, const char* what, const char* name) {
  if (is_complex(tensor.dtype())) return check(view_as_real(tensor), what, name);
  if (!is_floating(tensor.dtype()) || all_finite(tensor)) return;
  LOCKSTEP_CHECK(!any(isnan(tensor)).item<bool>(), "[anomaly] '", name, "' produced the first NaN, in its ", what,
                 " of shape ", tensor.shape(), "; check the values that it reads");
}

}  // namespace lockstep
