// A backward pass in two parts; joined() lets one pass start at several variables. See split_backward.h.
#include "autograd/split_backward.h"

#include <algorithm>
#include <unordered_set>

#include "tensor/ops.h"

namespace lockstep {
namespace {

/// A node from which a backward pass starts at several variables at once: it gives each one the gradient stored for it.
struct Join final : Node {
  explicit Join(std::vector<std::pair<Edge, Tensor>> list) : Node("joined", int(list.size()), 1) {
    for (auto& [edge, grad] : list) {
      inputs()[int(grads.size())] = std::move(edge);
      grads.push_back(std::move(grad));
    }
  }
  void run(Backward& backward) override {
    for (size_t i = 0; i < grads.size(); ++i)
      // SplitBackward may have removed the edge to an input: then its gradient stays in `grads` for the second part
      if (backward.needs(int(i))) backward.give(int(i), std::move(grads[i]));
  }
  void release_saved() override { grads.clear(); }
  std::vector<Tensor> grads;
};

/// Makes a Join and returns its result: a zero on the gradients' device, as a CUDA graph captures work of one device.
Variable start_of(std::vector<std::pair<Edge, Tensor>> list) {
  const Device device = list.empty() ? default_device() : list[0].second.device();
  return tape::attach(Ref<Node>(new Join(std::move(list))), {}, zeros({}, {.device = device}));
}

}  // namespace

Variable joined(const std::vector<Variable>& roots, std::vector<Tensor> grads) {
  std::vector<std::pair<Edge, Tensor>> list;
  for (size_t i = 0; i < roots.size(); ++i) {
    if (roots[i].requires_grad() && grads.at(i).defined())
      list.push_back({{roots[i].impl()->node, roots[i].impl()->output}, std::move(grads[i])});
  }
  return start_of(std::move(list));
}

SplitBackward::SplitBackward(const Variable& root, const std::vector<Variable>& first) {
  std::unordered_set<const Node*> at_once;
  for (const Variable& leaf : first) {
    LOCKSTEP_CHECK(leaf.is_leaf() && leaf.requires_grad(),
                   "[SplitBackward] expected leaves that require grad; leave out the others");
    at_once.insert(leaf.impl()->node.get());
  }
  LOCKSTEP_CHECK(
      root.requires_grad(),
      "[SplitBackward] this value does not require grad; was it computed in a NoGrad scope, or from data only? Compute "
      "it outside such a scope, from a variable that requires grad");
  // Find the nodes with edges to leaves not in `first`. Remove these edges for this pass and keep the nodes' gradients.
  std::vector<Node*> stack{root.impl()->node.get()};
  std::unordered_set<const Node*> seen(stack.begin(), stack.end());
  std::vector<Node*> nodes;
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    bool waits = false;
    for (const Edge& edge : node->inputs()) {
      if (!edge.node) continue;
      if (edge.node->is_leaf()) waits |= !at_once.count(edge.node.get());
      else if (seen.insert(edge.node.get()).second) stack.push_back(edge.node.get());
    }
    if (waits) nodes.push_back(node);
  }
  std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return a->number() > b->number(); });
  rest_.reserve(nodes.size());
  for (Node* node : nodes) {
    Part& part = rest_.emplace_back(Part{Ref<Node>(node), std::vector<Edge>(size_t(node->inputs().size())),
                                         std::vector<Tensor>(size_t(node->outputs().size()))});
    for (int i = 0; i < node->inputs().size(); ++i) {
      Edge& edge = node->inputs()[i];
      if (edge.node && edge.node->is_leaf() && !at_once.count(edge.node.get())) std::swap(edge, part.edges[size_t(i)]);
    }
    for (int i = 0; i < node->outputs().size(); ++i) {
      node->outputs()[i].add_hook(
          // this hook is registered last, so it sees the gradient after all other hooks have changed it
          {-1, [&kept = part.grads[size_t(i)]](const Tensor& grad) {
             kept = grad;
             return Tensor();
           }});
    }
  }
  root.backward({}, true);  // finish() needs the saved tensors; nodes not in rest_ are freed with the root
  for (Part& part : rest_) {
    // remove the hooks, which have run, and put the edges back
    for (int i = 0; i < part.node->outputs().size(); ++i) part.node->outputs()[i].hooks.reset();
    for (int i = 0; i < part.node->inputs().size(); ++i) part.node->inputs()[i] = std::move(part.edges[size_t(i)]);
  }
}

void SplitBackward::run(std::vector<Part> parts, std::vector<std::pair<Edge, Tensor>> list) {
  for (Part& part : parts) {
    for (size_t i = 0; i < part.grads.size(); ++i)
      if (part.grads[i].defined()) list.push_back({{part.node, int(i)}, std::move(part.grads[i])});
  }
  parts.clear();
  if (!list.empty()) start_of(std::move(list)).backward();
}

void SplitBackward::finish(std::vector<std::pair<Variable, Tensor>> before) {
  std::vector<std::pair<Edge, Tensor>> list;
  for (auto& [leaf, grad] : before) {
    if (grad.defined()) list.push_back({{leaf.impl()->node, leaf.impl()->output}, std::move(grad)});
  }
  before.clear();
  run(std::exchange(rest_, {}), std::move(list));
}

void SplitBackward::finish_but(const std::vector<Variable>& leaves) {
  std::unordered_set<const Node*> later;
  for (const Variable& leaf : leaves) later.insert(leaf.impl()->node.get());
  std::vector<Part> now = std::exchange(rest_, {}), left;
  // A leaf must get all its gradients in one pass, so nodes that share a leaf are all left for later, or none is.
  for (bool grows = true; grows;) {
    grows = false;
    for (Part& part : now) {
      if (!part.node || std::none_of(part.node->inputs().begin(), part.node->inputs().end(),
                                     [&](const Edge& e) { return later.count(e.node.get()); }))
        continue;
      for (const Edge& edge : part.node->inputs())
        if (edge.node) later.insert(edge.node.get());
      left.push_back(std::move(part));
      grows = true;
    }
  }
  std::erase_if(now, [](const Part& part) { return !part.node; });
  std::sort(left.begin(), left.end(), [](const Part& a, const Part& b) { return a.node->number() > b.node->number(); });
  rest_ = std::move(left);
  run(std::move(now), {});
}

}  // namespace lockstep
