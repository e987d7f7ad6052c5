#pragma once
// The backward walk that is itself recorded (create_graph): gradients are variables, and derivatives of derivatives
// follow (Pearlmutter, 1994: a product with the Hessian is the gradient of a gradient times a vector).
#include <functional>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "autograd/tape.h"

namespace lockstep {

/// A pass over the nodes by descending number: what a node receives comes from nodes with higher ones. Nothing is
/// freed.
class RecordedPass {
 public:
  /// `wanted`: the places whose gradients are asked for, and what does not lead there is left out; null: all leaves.
  RecordedPass(const std::vector<Edge>& roots, const std::vector<Edge>* wanted);

  void give(const Edge& edge, const Variable& grad);
  /// Whether a gradient given there is of use.
  bool leads(const Edge& edge) const { return !wanted_ || useful_.count(edge.node.get()); }
  /// Whether this thread is in one: who keeps parameters elsewhere (ZeRO 3) has to know.
  static bool running();
  /// Runs everything; gives back the wanted gradients, undefined where nothing flowed.
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
  std::map<uint64_t, Waiting, std::greater<>> waiting_;  // by number
  std::vector<Waiting> leaves_;                          // all have number 0: in the order in which they were reached
  std::unordered_map<const Node*, size_t> place_of_leaf_;
};

/// backward({.create_graph = true}).
void backward_recorded(const Variable& root, const Tensor& gradient);

/// x summed to a shape that broadcasts to its own.
Variable sum_to(const Variable& x, const Shape& shape);

}  // namespace lockstep
