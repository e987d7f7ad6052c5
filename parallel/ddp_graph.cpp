// Which parameters get a gradient in a pass. Without options: every one, once in a step, and what is missing is an
// error. find_unused_parameters walks the graph of what forward returned; static_graph counts in the first pass, and
// expects as many in every other.
#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "autograd/tape.h"
#include "parallel/agreement.h"
#include "parallel/ddp_impl.h"

namespace lockstep::parallel {

using Impl = DistributedDataParallel::Impl;

/// Notes which parameters a result depends on.
void Impl::look_at(const Variable& output) {
  saw_forward = true;
  if (++forwards > 1) return reachable.clear();  // which of them backward will start from is not known
  std::unordered_map<const Node*, size_t> leaves;
  for (size_t i = 0; i < reducer->parameters.size(); ++i)
    leaves.emplace(reducer->parameters[i].variable.impl()->node.get(), i);
  reachable.assign(reducer->parameters.size(), false);
  std::vector<Node*> stack{output.impl()->node.get()};
  std::unordered_set<const Node*> seen{stack[0]};
  bool any = false;
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (const auto found = leaves.find(node); found != leaves.end()) any = reachable[found->second] = true;
    for (const Edge& edge : node->inputs())
      if (edge.node && seen.insert(edge.node.get()).second) stack.push_back(edge.node.get());
  }
  if (any || output.is_leaf()) return;
  // No gradient will arrive, yet the other ranks wait for this one's zeros.
  Variable(output).before_backward([this, exists = std::weak_ptr<int>(alive)] {
    if (!exists.expired() && !reducer->in_pass()) reducer->begin_pass();
  });
}

void Impl::expect_gradients() {
  std::vector<Reducer::Parameter>& parameters = reducer->parameters;
  if (options.static_graph) {  // the first pass counts, and reduces at its end
    for (size_t i = 0; i < parameters.size(); ++i)
      parameters[i].expected = counted ? expected[i] : std::numeric_limits<int>::max();
  } else if (options.find_unused_parameters) {
    if (!saw_forward) {
      fail_everywhere(group,
                      "[ddp] find_unused_parameters: expected the forward to run through ddp.call() or ddp(x): a rank "
                      "that uses no parameter would leave the others waiting");
    }
    if (forwards == 1 && !reachable.empty())
      for (size_t i = 0; i < parameters.size(); ++i) parameters[i].expected = reachable[i];
  }
  forwards = std::max(0, forwards - 1);
  reachable.clear();
}

std::string Impl::unexpected(const Reducer::Parameter& p) {
  if (p.expected > 0)
    return Policy::unexpected(p) +
           (options.static_graph ? "; the graph must be the same in every step" : "; set static_graph = true");
  return options.static_graph
             ? str("static_graph: ", p.name,
                   " got a gradient, but none in the first backward; the graph must be the same in every step")
             : str(p.name,
                   " got a gradient, but what ddp.call() returned does not depend on it; return everything that the "
                   "loss is made of");
}

void Impl::check_pass() {
  if (answering) return;
  const std::vector<Reducer::Parameter>& parameters = reducer->parameters;
  std::vector<std::string> wrong;
  if (options.static_graph) {
    if (!std::exchange(counted, true))
      for (const Reducer::Parameter& p : parameters) expected.push_back(p.seen);
    for (size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].seen != expected[i]) wrong.push_back(parameters[i].name);
    if (wrong.empty()) return;
    fail_everywhere(group, str("[ddp] static_graph: ", wrong.size(), " of ", parameters.size(),
                               " parameters got fewer gradients than in the first backward: ", list_names(wrong),
                               "; the graph must be the same in every step, or use find_unused_parameters"));
  }
  if (options.find_unused_parameters || !reducer->is_syncing()) return;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (!parameters[i].used) wrong.push_back(parameters[i].name);
  if (wrong.empty()) return;
  fail_everywhere(group, str("[ddp] ", wrong.size(), " of ", parameters.size(),
                             " parameters got no gradient in this step: ", list_names(wrong),
                             ". The loss does not depend on them. Set find_unused_parameters = true, or static_graph = "
                             "true when it is so in every step, or freeze them "
                             "(requires_grad_(false)) before the model is wrapped"));
}

/// What no rank used keeps an undefined gradient, so that the optimizer leaves it alone (weight decay, momentum).
std::vector<bool> Impl::agree_on_used() {
  if (!options.find_unused_parameters && !options.static_graph)
    return std::vector<bool>(reducer->parameters.size(), true);
  if (options.static_graph && !used_anywhere.empty()) return used_anywhere;
  std::vector<bool> mine;
  for (const Reducer::Parameter& p : reducer->parameters) mine.push_back(p.used);
  return used_anywhere = used_by_any(mine, group);
}

}  // namespace lockstep::parallel
