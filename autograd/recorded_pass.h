#pragma once
// The backward pass that is itself recorded (create_graph): gradients are variables, so they can be differentiated
// again (Pearlmutter, 1994: a product with the Hessian is the gradient of a gradient times a vector).
#include <functional>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "autograd/tape.h"

namespace lockstep {

/// A backward pass that is recorded. Runs the node with the highest number first, then the others in falling order,
/// since gradients of a node come only from nodes with higher numbers. Does not free the graph.
class RecordedPass {
 public:
  /// A pass from `roots`. `wanted`: the node outputs whose gradients run() returns; nodes that depend on none of them
  /// are skipped. Null: run() adds the gradients of all leaves to their .grad.
  RecordedPass(const std::vector<Edge>& roots, const std::vector<Edge>* wanted);

  /// Adds `grad` to the gradient collected so far for the node output `edge`.
  void give(const Edge& edge, const Variable& grad);
  /// True when the gradient of the node output `edge` is needed to compute the wanted gradients.
  bool leads(const Edge& edge) const { return !wanted_ || useful_.count(edge.node.get()); }
  /// True when this thread is inside a RecordedPass. ZeRO 3 then throws an Error, because it frees parameters.
  static bool running();
  /// Runs the pass. Returns the wanted gradients, undefined where none arrived.
  std::vector<Variable> run();

 private:
  struct Waiting {
    Ref<Node> node;
    std::vector<Variable> grads;
  };
  void collect(const Waiting& waiting);

  const std::vector<Edge>* wanted_;
  std::vector<Variable> found_;
  std::unordered_set<const Node*> useful_;
  std::map<uint64_t, Waiting, std::greater<>> waiting_;  // keyed by the node's number
  std::vector<Waiting> leaves_;                          // all leaves have number 0: in the order of first arrival
  std::unordered_map<const Node*, size_t> place_of_leaf_;
};

/// Variable::backward() with create_graph.
void backward_recorded(const Variable& root, const Tensor& gradient);

/// Sums x to `shape`, which must broadcast to the shape of x.
Variable sum_to(const Variable& x, const Shape& shape);

}  // namespace lockstep
