// Decides which parameters must get a gradient in a backward pass. By default every parameter must get one in each
// step, and at most one per pass (Error otherwise). find_unused_parameters walks the graph of the forward's output.
// static_graph counts the gradients in the first pass and expects the same counts in every later pass.
#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "autograd/tape.h"
#include "base/suggest.h"
#include "parallel/agreement.h"
#include "parallel/ddp.h"

namespace lockstep::parallel {

using Ddp = DistributedDataParallel;

/// Marks the parameters that `output` depends on.
void Ddp::look_at(const Variable& output) {
  saw_forward_ = true;
  // After several forwards, backward may start from any of their outputs. Every parameter is then expected to get a
  // gradient.
  if (++forwards_ > 1) return reachable_.clear();
  std::unordered_map<const Node*, size_t> leaves;
  for (size_t i = 0; i < reducer_->parameters.size(); ++i)
    leaves.emplace(reducer_->parameters[i].variable.impl()->node.get(), i);
  reachable_.assign(reducer_->parameters.size(), false);
  std::vector<Node*> stack{output.impl()->node.get()};
  std::unordered_set<const Node*> seen{stack[0]};
  bool any = false;
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (const auto found = leaves.find(node); found != leaves.end()) any = reachable_[found->second] = true;
    for (const Edge& edge : node->inputs())
      if (edge.node && seen.insert(edge.node.get()).second) stack.push_back(edge.node.get());
  }
  if (any || output.is_leaf()) return;
  // `output` depends on no parameter, so no gradient will begin the reducer's pass. But the other ranks wait for zeros
  // from this rank, so this hook begins the pass when backward starts.
  Variable(output).before_backward([this, exists = std::weak_ptr<int>(alive_)] {
    if (!exists.expired() && !reducer_->in_pass()) reducer_->begin_pass();
  });
}

void Ddp::expect_gradients() {
  std::vector<Reducer::Parameter>& parameters = reducer_->parameters;
  if (options_.static_graph) {  // the first pass counts gradients, and reduces at its end
    for (size_t i = 0; i < parameters.size(); ++i)
      parameters[i].expected = counted_ ? expected_[i] : std::numeric_limits<int>::max();
  } else if (options_.find_unused_parameters) {
    if (!saw_forward_) {
      fail_everywhere(group_,
                      "[ddp] find_unused_parameters: expected the forward to run through ddp.call() or ddp(x): a rank "
                      "that uses no parameter would leave the others waiting");
    }
    if (forwards_ == 1 && !reachable_.empty())
      for (size_t i = 0; i < parameters.size(); ++i) parameters[i].expected = reachable_[i];
  }
  forwards_ = std::max(0, forwards_ - 1);
  reachable_.clear();
}

std::string Ddp::unexpected(const Reducer::Parameter& p) {
  if (p.expected > 0)
    return Policy::unexpected(p) +
           (options_.static_graph ? "; the graph must be the same in every step" : "; set static_graph = true");
  return options_.static_graph
             ? str("static_graph: ", p.name,
                   " got a gradient, but none in the first backward; the graph must be the same in every step, or "
                   "leave out static_graph")
             : str(p.name,
                   " got a gradient, but what ddp.call() returned does not depend on it; return everything that the "
                   "loss depends on");
}

void Ddp::check_pass() {
  if (forwards_ == 0) saw_forward_ = false;  // the next backward needs a forward of its own
  const std::vector<Reducer::Parameter>& parameters = reducer_->parameters;
  std::vector<std::string> wrong;
  if (options_.static_graph) {
    if (!std::exchange(counted_, true))
      for (const Reducer::Parameter& p : parameters) expected_.push_back(p.seen);
    for (size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].seen != expected_[i]) wrong.push_back(parameters[i].name);
    if (wrong.empty()) return;
    fail_everywhere(group_, str("[ddp] static_graph: ", wrong.size(), " of ", parameters.size(),
                                " parameters got fewer gradients than in the first backward: ", list_names(wrong),
                                "; the graph must be the same in every step, or use find_unused_parameters"));
  }
  if (options_.find_unused_parameters || !reducer_->is_syncing()) return;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (!parameters[i].used && parameters[i].trains()) wrong.push_back(parameters[i].name);
  if (wrong.empty()) return;
  fail_everywhere(group_, str("[ddp] ", wrong.size(), " of ", parameters.size(),
                              " parameters got no gradient in this step: ", list_names(wrong),
                              ". The loss does not depend on them. Set find_unused_parameters = true, or static_graph "
                              "= true if that is so in every step, or freeze them "
                              "(requires_grad_(false))"));
}

/// Returns true for each parameter that any rank used. The gradients of all other parameters stay undefined, so that
/// the optimizer leaves them alone (no weight decay, no momentum).
std::vector<bool> Ddp::agree_on_used() {
  const bool all = !options_.find_unused_parameters && !options_.static_graph;
  if (options_.static_graph && !used_anywhere_.empty()) return used_anywhere_;
  std::vector<bool> mine;
  for (const Reducer::Parameter& p : reducer_->parameters) mine.push_back(p.trains() && (all || p.used));
  if (all) return mine;
  return used_anywhere_ = used_by_any(mine, group_);
}

}  // namespace lockstep::parallel
