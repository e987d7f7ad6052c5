// Backward, the argument of a derivative, which reads incoming gradients from it and returns those of its inputs.
#include "autograd/backward.h"

#include <algorithm>

#include "autograd/recorded.h"

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
void accumulate(Variable& sum, const Variable& grad) { sum = sum.defined() ? add(sum, grad) : grad; }

template <class V> V& grad_of(Node::Output& output) {
  if constexpr (std::is_same_v<V, Tensor>) return output.grad.plain;
  else return output.grad.recorded;
}

/// Returns a saved tensor, the value of output number `output` of `node`. `reader`: the derivative, named in errors.
template <class V>
typename BackwardOf<V>::Held held(const Ref<Node>& node, int output, const Saved& saved, const char* reader) {
  if constexpr (std::is_same_v<V, Tensor>) return saved.get(reader);
  else return saved.defined() ? tape::variable_at(node, output, saved.get(reader)) : Variable();
}

/// The derivative of a node that copies the inputs of an operation to its outputs. Each input gets a gradient of its
/// own, also if several inputs are the same variable. The pass that makes this node adds their gradients in the order
/// of the inputs. A later pass (create_graph) adds them in the opposite order, as if each were recorded by itself.
struct EachInput {
  int count;
  bool again = false;

  template <class Back> void operator()(Back& back) {
    for (int k = 0; k < count; ++k) {
      const int i = again ? count - 1 - k : k;
      back.give(i, std::move(back.grad(i)));
    }
    again = true;
  }
};

}  // namespace

template <class V> V& BackwardOf<V>::grad(int i) const { return grad_of<V>(node_->outputs()[i]); }

template <class V> inline bool BackwardOf<V>::needs(int i) const {
  const Edge& edge = node_->inputs()[i];
  return edge.node && (!is_recorded || edge.node->visit_.leads);
}

template <class V> void BackwardOf<V>::give(int i, V grad) const {
  if (!needs(i) || !grad.defined()) return;
  const Edge& edge = node_->inputs()[i];
  Node::Output& target = edge.node->outputs()[edge.output];
  LOCKSTEP_CHECK(grad.dtype() == target.dtype, "[backward] expected the gradient of '", node_->name(),
                 "' towards input ", i, " to be ", target.dtype, ", got ", grad.dtype(),
                 "; convert it with .to(dtype) in the derivative");
  if (!(grad.shape() == target.shape)) grad = sum_to(grad, target.shape);
  if (AnomalyMode::enabled()) AnomalyMode::check(bare(grad), "gradient", node_->name());
  accumulate(grad_of<V>(target), std::move(grad));
}

template <class V> auto BackwardOf<V>::input(int i, const Saved& saved) const -> Held {
  const Edge& edge = node_->inputs()[i];
  return held<V>(edge.node, edge.output, saved, node_->name());
}
template <class V> auto BackwardOf<V>::output(const Saved& saved, int i) const -> Held {
  return held<V>(node_, i, saved, node_->name());
}

template <class V> Tensor BackwardOf<V>::partial(int i) const {
  const Edge& edge = node_->inputs()[i];
  if (!edge.node || AnomalyMode::enabled()) return {};
  const Tensor& sum = edge.node->outputs()[edge.output].grad.plain;
  return sum.defined() && is_dense(sum) ? sum : Tensor();
}

template <class V> const UnaryGrad* BackwardOf<V>::fold(int i) const {
  const Edge& edge = node_->inputs()[i];
  if (is_recorded || !edge.node || edge.node->visit_.uses != 1 || AnomalyMode::enabled()) return nullptr;
  const auto is_it = [&](const Edge& wanted) { return wanted.node == edge.node; };
  if (pass_.wanted && std::any_of(pass_.wanted->begin(), pass_.wanted->end(), is_it)) return nullptr;
  const Node::Output& target = edge.node->outputs()[edge.output];
  const auto looks = [](const Node::Output::Hook& hook) { return hook.looks; };
  if (target.grad.plain.defined() || (target.hooks && std::any_of(target.hooks->begin(), target.hooks->end(), looks)))
    return nullptr;
  const UnaryGrad* const found = edge.node->unary();
  edge.node->visit_.folded = found;
  return found;
}

template <class V>
void BackwardOf<V>::through(const std::vector<const Saved*>& saved,
                            const std::function<Variable(const Variables&)>& composed) const {
  through_all(saved, [&](const Variables& inputs) { return Variables{composed(inputs)}; });
}

template <class V>
void BackwardOf<V>::through_all(const std::vector<const Saved*>& saved,
                                const std::function<Variables(const Variables&)>& composed) const {
  LOCKSTEP_CHECK(is_recorded, "[backward] through() is for recorded passes; call it in run(RecordedBackward&)");
  Variables inputs;
  for (size_t i = 0; i < saved.size(); ++i) inputs.push_back(input(int(i), *saved[i]));
  for (const bool needed : {true, false}) {  // separate nodes: the pass must be able to skip the inputs not needed
    std::vector<Variable*> traced;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].requires_grad() && needs(int(i)) == needed) traced.push_back(&inputs[i]);
    Variables from;
    std::vector<Tensor> values;
    for (const Variable* x : traced) from.push_back(*x), values.push_back(x->tensor());
    const Variables made = record("inputs", from, std::move(values), EachInput{int(from.size())});
    for (size_t i = 0; i < made.size(); ++i) *traced[i] = as_view(from[i], made[i]);
  }
  const Variables results = composed(inputs);
  std::vector<tape::GradAt> starts;
  for (size_t i = 0; i < results.size(); ++i)
    if (grad(int(i)).defined() && results[i].requires_grad())
      starts.emplace_back(tape::edge_of(results[i]), grad(int(i)));
  pass_.starts.push_back(tape::join(std::move(starts)));
}

template class BackwardOf<Tensor>;
template class BackwardOf<Variable>;

void Node::run(RecordedBackward&) {
  fail(str("[backward] the derivative of '", name_,
           "' cannot be differentiated again (create_graph); compose this step from other operations"));
}

void Leaf::run(Backward& backward) { add(std::move(backward.grad())); }

void Leaf::run(RecordedBackward& backward) {
  accumulate(recorded_grad, backward.grad());
  add(backward.grad().tensor());
}

void Leaf::add(Tensor incoming) {
  const MemoryScope scope(Memory::gradient);
  if (grad.defined()) {
    LOCKSTEP_CHECK(grad.shape() == incoming.shape(), "[backward] expected .grad of shape ", incoming.shape(), ", got ",
                   grad.shape(), "; clear .grad or assign a tensor shaped like the leaf");
    add_(grad, incoming);
  } else {
    grad = is_dense(incoming) ? std::move(incoming) : incoming.clone();
    grad.storage()->book_as(Memory::gradient);
  }
  incoming = {};
  for (size_t i = 0; i < on_complete.size(); ++i) on_complete[i].second(grad);
}

}  // namespace lockstep
