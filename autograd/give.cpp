// Class Backward, from which a derivative reads incoming gradients, and to which it gives gradients of the inputs.
#include <algorithm>

#include "autograd/tape.h"
#include "tensor/ops.h"

namespace lockstep {

namespace {

bool is_dense(const Tensor& tensor) { return tensor.is_contiguous() && tensor.is_exclusive(); }

/// sum += grad, in place when nobody else holds the memory.
void accumulate(Tensor& sum, Tensor grad) {
  if (!sum.defined()) sum = std::move(grad);
  else if (is_dense(sum)) add_(sum, grad);
  else if (is_dense(grad)) sum = add_(grad, sum);
  else sum = add(sum, grad);
}

}  // namespace

Tensor& Backward::grad(int i) const { return node_.outputs()[i].grad; }
bool Backward::needs(int i) const { return bool(node_.inputs()[i].node); }

const Tensor& Backward::input(int, const Saved& saved) const { return saved.get(node_.name()); }
const Tensor& Backward::output(const Saved& saved, int) const { return saved.get(node_.name()); }

void Backward::give(int i, Tensor grad) const {
  const Edge& edge = node_.inputs()[i];
  if (!edge.node || !grad.defined()) return;
  Node::Output& target = edge.node->outputs()[edge.output];
  LOCKSTEP_CHECK(grad.dtype() == target.dtype, "[backward] expected the gradient of '", node_.name(),
                 "' towards input ", i, " to be ", target.dtype, ", got ", grad.dtype(),
                 "; convert it with .to(dtype) in the derivative");
  if (!(grad.shape() == target.shape)) grad = sum_to(grad, target.shape);
  if (AnomalyMode::enabled()) AnomalyMode::check(grad, "gradient", node_.name());
  accumulate(target.grad, std::move(grad));
}

Tensor Backward::partial(int i) const {
  const Edge& edge = node_.inputs()[i];
  if (!edge.node || AnomalyMode::enabled()) return {};
  const Tensor& sum = edge.node->outputs()[edge.output].grad;
  return sum.defined() && is_dense(sum) ? sum : Tensor();
}

const UnaryGrad* Backward::fold(int i) const {
  const Edge& edge = node_.inputs()[i];
  if (!folds_ || !edge.node || edge.node->uses_ != 1) return nullptr;
  const Node::Output& target = edge.node->outputs()[edge.output];
  const auto looks = [](const Node::Output::Hook& hook) { return hook.looks; };
  if (target.grad.defined() || (target.hooks && std::any_of(target.hooks->begin(), target.hooks->end(), looks)))
    return nullptr;
  const UnaryGrad* const found = edge.node->unary();
  edge.node->folded_ = found;
  return found;
}

void Leaf::run(Backward& backward) {
  if (backward.grad().defined()) add(backward.grad());
}

void Leaf::add(Tensor& incoming) {
  const MemoryScope scope(Memory::gradient);
  if (grad.defined()) {
    LOCKSTEP_CHECK(grad.shape() == incoming.shape(), "[backward] expected .grad of shape ", incoming.shape(), ", got ",
                   grad.shape(), "; clear .grad or assign a tensor shaped like the leaf");
    add_(grad, incoming);
  } else {
    grad = incoming.is_contiguous() && incoming.is_exclusive() ? std::move(incoming) : incoming.clone();
    grad.storage()->book_as(Memory::gradient);
  }
  incoming = {};
  for (size_t i = 0; i < on_complete.size(); ++i) on_complete[i].second(grad);
}

}  // namespace lockstep
