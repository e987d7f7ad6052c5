// A backward pass in two parts; joined() lets one pass start at several variables. See split_backward.h.
#include "autograd/split_backward.h"

#include <algorithm>
#include <unordered_set>

namespace lockstep {

Variable joined(const std::vector<Variable>& roots, std::vector<Tensor> grads) {
  std::vector<tape::GradAt> list;
  for (size_t i = 0; i < roots.size(); ++i)
    if (roots[i].requires_grad() && grads.at(i).defined())
      list.emplace_back(tape::edge_of(roots[i]), std::move(grads[i]));
  return tape::join(std::move(list));
}

SplitBackward::SplitBackward(const Variable& root, const std::vector<Variable>& first) {
  std::unordered_set<const Node*> at_once;
  for (const Variable& leaf : first) {
    LOCKSTEP_CHECK(leaf.is_leaf() && leaf.requires_grad(),
                   "[SplitBackward] expected leaves that require grad, got another variable; pass leaves only");
    at_once.insert(leaf.impl()->node.get());
  }
  LOCKSTEP_CHECK(
      root.requires_grad(),
      "[SplitBackward] this value does not require grad; was it computed in a NoGrad scope, or from data only? Compute "
      "it outside such a scope, from a variable that requires grad");
  // Cuts the edges to leaves not in `first` for this pass, and keeps the gradients of the nodes that had such edges.
  std::vector<std::pair<Ref<Node>, std::vector<Edge>>> cut;
  std::vector<Node*> stack{root.impl()->node.get()};
  std::unordered_set<const Node*> visited(stack.begin(), stack.end());
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    std::vector<Edge> late(size_t(node->inputs().size()));
    bool is_cut = false;
    for (size_t i = 0; i < late.size(); ++i) {
      Edge& edge = node->inputs()[int(i)];
      if (!edge.node) continue;
      if (edge.node->is_leaf() && !at_once.count(edge.node.get())) std::swap(edge, late[i]), is_cut = true;
      else if (visited.insert(edge.node.get()).second) stack.push_back(edge.node.get());
    }
    if (!is_cut) continue;
    cut.emplace_back(node, std::move(late));
    for (int i = 0; i < node->outputs().size(); ++i)
      // this hook is registered last, so it sees the gradient after all other hooks have changed it
      node->outputs()[i].add_hook({-1, [this, node, i](const Tensor& grad) {
                                     rest_.push_back({{Ref<Node>(node), i}, grad});
                                     return Tensor();
                                   }});
  }
  root.backward({}, true);  // finish() needs the saved tensors; nodes that were not cut are freed with the root
  for (auto& [node, late] : cut) {
    // remove the hooks, which have run, and leave only the edges that were cut
    for (Node::Output& output : node->outputs()) output.hooks.reset();
    std::move(late.begin(), late.end(), node->inputs().begin());
  }
}

void SplitBackward::finish(std::vector<std::pair<Variable, Tensor>> before) {
  std::vector<tape::GradAt> list;
  for (auto& [leaf, grad] : before)
    if (grad.defined()) list.emplace_back(tape::edge_of(leaf), std::move(grad));
  before.clear();
  std::move(rest_.begin(), rest_.end(), std::back_inserter(list));
  rest_.clear();
  run(std::move(list));
}

void SplitBackward::run(std::vector<tape::GradAt> list) {
  if (!list.empty()) tape::join(std::move(list)).backward();
}

void SplitBackward::finish_but(const std::vector<Variable>& leaves) {
  std::unordered_set<const Node*> later;
  for (const Variable& leaf : leaves) later.insert(leaf.impl()->node.get());
  const auto is_later = [&](const tape::GradAt& at) {
    return std::any_of(at.first.node->inputs().begin(), at.first.node->inputs().end(),
                       [&](const Edge& edge) { return later.count(edge.node.get()); });
  };
  // A leaf must get all its gradients in one pass, so nodes that share a leaf are all left for later, or none is.
  for (size_t before = 0; before != later.size();) {
    before = later.size();
    for (const tape::GradAt& at : rest_)
      if (is_later(at))
        for (const Edge& edge : at.first.node->inputs())
          if (edge.node) later.insert(edge.node.get());
  }
  const auto middle = std::stable_partition(rest_.begin(), rest_.end(), is_later);
  std::vector<tape::GradAt> now(std::make_move_iterator(middle), std::make_move_iterator(rest_.end()));
  rest_.erase(middle, rest_.end());
  run(std::move(now));
}

}  // namespace lockstep
