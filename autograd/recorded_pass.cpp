// The recorded backward pass (create_graph), and grad(). See recorded_pass.h.
#include "autograd/recorded_pass.h"

#include <algorithm>
#include <string>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/recorded.h"
#include "autograd/split_backward.h"
#include "trace/trace.h"

namespace lockstep {
namespace {

/// Makes a variable with the value `tensor` that stands on the tape for the node output `place`.
Variable at_place(const Tensor& tensor, const Edge& place) {
  Variable result(tensor);
  if (!place.node) return result;
  result.impl()->requires_grad = true;
  result.impl()->node = place.node;
  result.impl()->output = place.output;
  return result;
}

Edge place_of(const Variable& x) { return {x.impl()->node, x.impl()->output}; }

/// Makes a variable equal to x, to stand for one input of an operation. Its gradient is that of this one input, even if
/// x is passed to the operation several times.
Variable aliased(const Variable& x) {
  if (!needs_grad({&x})) return x;
  return as_view(x, record("input", {&x}, x.tensor(), [](auto& back) { back.give(0, back.grad()); }));
}

/// Scopes of a recorded pass: recording is on and autocast off, whatever the caller's scopes are.
struct Recording {
  EnableGrad grad;
  Autocast none{bf16, false};
};

thread_local int running_passes = 0;
struct Running {
  Running() { ++running_passes; }
  ~Running() { --running_passes; }
};

Variable start_of(const Variable& root, const Variable& gradient) {
  return gradient.defined() ? gradient : Variable(ones_like(root.tensor()));
}

}  // namespace

void Node::run(RecordedBackward&) {
  fail(str("[backward] the derivative of '", name_,
           "' cannot be differentiated again (create_graph); compose this step from other operations"));
}

Variable sum_to(const Variable& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  Dims dims;
  const int more = x.dim() - shape.rank();
  for (int d = 0; d < x.dim(); ++d)
    if (d < more || (shape[d - more] == 1 && x.size(d) != 1)) dims.push_back(d);
  return sum(x, dims, true).reshape(shape);
}

bool RecordedBackward::needs(int i) const {
  const Edge& edge = node_->inputs()[i];
  return edge.node && pass_.leads(edge);
}

void RecordedBackward::give(int i, const Variable& grad) const {
  if (!needs(i) || !grad.defined()) return;
  const Edge& edge = node_->inputs()[i];
  const Node::Output& target = edge.node->outputs()[edge.output];
  LOCKSTEP_CHECK(grad.dtype() == target.dtype, "[backward] expected the gradient of '", node_->name(),
                 "' towards input ", i, " to be ", target.dtype, ", got ", grad.dtype(),
                 "; convert it with .to(dtype) in the derivative");
  pass_.give(edge, sum_to(grad, target.shape));
}

Variable RecordedBackward::input(int i, const Saved& saved) const {
  return saved.defined() ? at_place(saved.get(node_->name()), node_->inputs()[i]) : Variable();
}

Variable RecordedBackward::output(const Saved& saved, int i) const {
  return saved.defined() ? at_place(saved.get(node_->name()), {node_, i}) : Variable();
}

void RecordedBackward::through(const std::vector<const Saved*>& saved,
                               const std::function<Variable(const std::vector<Variable>&)>& composed) const {
  through_all(saved, [&](const std::vector<Variable>& inputs) { return std::vector<Variable>{composed(inputs)}; });
}

void RecordedBackward::through_all(
    const std::vector<const Saved*>& saved,
    const std::function<std::vector<Variable>(const std::vector<Variable>&)>& composed) const {
  std::vector<Variable> inputs, wanted;
  std::vector<int> places;
  for (size_t i = 0; i < saved.size(); ++i) {
    inputs.push_back(saved[i]->defined() ? aliased(input(int(i), *saved[i])) : Variable());
    if (!needs(int(i))) continue;
    wanted.push_back(inputs[i]);
    places.push_back(int(i));
  }
  // Skips results that received no gradient and results that require none.
  std::vector<Variable> results, starts;
  const std::vector<Variable> made = composed(inputs);
  for (size_t i = 0; i < made.size(); ++i)
    if (grad(int(i)).defined() && made[i].requires_grad()) results.push_back(made[i]), starts.push_back(grad(int(i)));
  const std::vector<Variable> grads =
      lockstep::grad(results, wanted, {.grad_outputs = starts, .create_graph = true, .allow_unused = true});
  for (size_t i = 0; i < places.size(); ++i) give(places[i], grads[i]);
}

RecordedPass::RecordedPass(const std::vector<Edge>& roots, const std::vector<Edge>* wanted)
    : wanted_(wanted), found_(wanted ? wanted->size() : 0) {
  // Find all reachable nodes. A node is useful if its gradient is wanted or one of its inputs is useful. Inputs have
  // lower numbers than their node, so a loop over the nodes by rising number finds all useful ones.
  std::vector<Node*> nodes, stack;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](Node* node) {
    if (!seen.insert(node).second) return;
    LOCKSTEP_CHECK(!node->released_, "[backward] the graph of '", node->name(),
                   "' was freed by an earlier backward; pass retain_graph = true to the first one");
    stack.push_back(node);
    nodes.push_back(node);
  };
  for (const Edge& root : roots) visit(root.node.get());
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    for (const Edge& edge : node->inputs())
      if (edge.node) visit(edge.node.get());
  }
  if (!wanted) return;
  for (const Edge& edge : *wanted) useful_.insert(edge.node.get());
  std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return a->number() < b->number(); });
  for (Node* node : nodes)
    for (const Edge& edge : node->inputs())
      if (edge.node && useful_.count(edge.node.get())) useful_.insert(node);
}

void RecordedPass::give(const Edge& edge, const Variable& grad) {
  Waiting* waiting;
  if (edge.node->is_leaf()) {
    const auto [found, is_new] = place_of_leaf_.emplace(edge.node.get(), leaves_.size());
    if (is_new) leaves_.emplace_back();
    waiting = &leaves_[found->second];
  } else {
    waiting = &waiting_[edge.node->number()];
  }
  waiting->node = edge.node;
  waiting->grads.resize(size_t(edge.node->outputs().size()));
  Variable& sum = waiting->grads[size_t(edge.output)];
  sum = sum.defined() ? add(sum, grad) : grad;
}

void RecordedPass::collect(const Waiting& waiting) {
  for (int i = 0; i < waiting.node->outputs().size(); ++i) {
    Node::Output& output = waiting.node->outputs()[i];
    const Variable& grad = waiting.grads[size_t(i)];
    if (!grad.defined()) continue;
    if (AnomalyMode::enabled()) AnomalyMode::check(grad.tensor(), "gradient", waiting.node->name());
    if (output.hooks) {
      output.grad = grad.tensor();
      output.run_hooks();
      const bool same = output.grad.storage() == grad.tensor().storage();
      output.grad = {};
      LOCKSTEP_CHECK(same, "[on_grad] hooks of '", waiting.node->name(),
                     "' must not replace the gradient with create_graph: the replacement would not be on the tape; "
                     "return an undefined Tensor");
    }
    for (size_t k = 0; k < found_.size(); ++k)
      if ((*wanted_)[k].node == waiting.node && (*wanted_)[k].output == i) found_[k] = grad;
  }
}

bool RecordedPass::running() { return running_passes > 0; }

std::vector<Variable> RecordedPass::run() {
  const Running running;
  while (!waiting_.empty()) {
    Waiting now = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    collect(now);
    const auto& inputs = now.node->inputs();
    if (std::none_of(inputs.begin(), inputs.end(), [&](const Edge& e) { return e.node && leads(e); })) continue;
    std::optional<trace::Scope> scope;
    if (trace::on()) scope.emplace(now.node->name(), trace::Category::backward);
    RecordedBackward backward(*this, now.node, now.grads);
    now.node->run(backward);
  }
  for (const Waiting& leaf : leaves_) {
    collect(leaf);
    if (wanted_) continue;
    Leaf& place = static_cast<Leaf&>(*leaf.node);
    place.recorded_grad = place.recorded_grad.defined() ? add(place.recorded_grad, leaf.grads[0]) : leaf.grads[0];
    Tensor grad = leaf.grads[0].tensor();
    place.add(grad);
  }
  return std::move(found_);
}

void backward_recorded(const Variable& root, const Tensor& gradient) {
  const Recording recording;
  RecordedPass pass({place_of(root)}, nullptr);
  pass.give(place_of(root), start_of(root, gradient.defined() ? Variable(gradient) : Variable()));
  pass.run();
}

std::vector<Variable> grad(const std::vector<Variable>& outputs, const std::vector<Variable>& inputs,
                           const GradOptions& options) {
  LOCKSTEP_CHECK(options.grad_outputs.empty() || options.grad_outputs.size() == outputs.size(),
                 "[grad] expected a grad_output for each of ", outputs.size(), " outputs, got ",
                 options.grad_outputs.size());
  std::vector<Variable> starts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Variable given = options.grad_outputs.empty() ? Variable() : options.grad_outputs[i];
    check_start("grad", outputs[i], given.defined() ? given.tensor() : Tensor());
    starts.push_back(start_of(outputs[i], given));
  }
  std::vector<Edge> wanted, roots;
  for (const Variable& input : inputs) {
    LOCKSTEP_CHECK(input.requires_grad(), "[grad] expected every input to require grad, input ", wanted.size(),
                   " does not");
    wanted.push_back(place_of(input));
  }
  std::vector<Variable> grads;
  if (options.create_graph) {
    const Recording recording;
    for (const Variable& output : outputs) roots.push_back(place_of(output));
    RecordedPass pass(roots, &wanted);
    for (size_t i = 0; i < roots.size(); ++i) pass.give(roots[i], starts[i]);
    grads = pass.run();
  } else {
    std::vector<Tensor> tensors;
    for (const Variable& start : starts) tensors.push_back(start.tensor());
    const Variable root = outputs.size() == 1 ? outputs[0] : joined(outputs, tensors);
    for (Tensor& tensor : gradients(root, inputs, outputs.size() == 1 ? tensors[0] : Tensor(), options.retain_graph))
      grads.push_back(tensor.defined() ? Variable(std::move(tensor)) : Variable());
  }
  for (size_t i = 0; i < grads.size(); ++i)
    LOCKSTEP_CHECK(grads[i].defined() || options.allow_unused, "[grad] no output depends on input ", i,
                   "; leave it out, or pass allow_unused = true for an undefined gradient");
  return grads;
}

Variable Variable::recorded_grad() const {
  LOCKSTEP_CHECK(is_leaf(), "[recorded_grad] expected a leaf, got the output of '", impl_->node->name(),
                 "'; use grad() with create_graph");
  return impl_->node ? static_cast<Leaf&>(*impl_->node).recorded_grad : Variable();
}

}  // namespace lockstep
