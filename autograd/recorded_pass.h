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

/// A pass over the nodes by descending number: all gradients of a node come from nodes with higher numbers. Frees
/// nothing.
class RecordedPass {
 public:
  /// `wanted`: the node outputs whose gradients are returned; nodes that do not lead to one are skipped. Null: all
  /// leaves.
  RecordedPass(const std::vector<Edge>& roots, const std::vector<Edge>* wanted);

  /// Adds to the gradient that waits at this output.
  void give(const Edge& edge, const Variable& grad);
  /// True when a gradient given there leads to a wanted one.
  bool leads(const Edge& edge) const { return !wanted_ || useful_.count(edge.node.get()); }
  /// True when this thread is inside such a pass. ZeRO 3 asks, because it keeps parameters elsewhere.
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

/// Sums x to a shape that broadcasts to x's.
Variable sum_to(const Variable& x, const Shape& shape);

}  // namespace lockstep
