#pragma once
// A backward in two parts, for pipelines: the gradients of a stage's inputs, which the stage before waits for, at once;
// those of its weights later. The bits are those of backward().
//
//   x ─▶ matmul ─▶ relu ─▶ matmul ─▶ loss       first part: what leads to x; each matmul keeps its gradient and what it
//   had saved w1 ─────┘      w2 ────────┘                 finish(): the edges to w1 and w2
#include <utility>
#include <vector>

#include "autograd/tape.h"

namespace lockstep {

class SplitBackward {
 public:
  /// Adds to .grad of `first`, leaves that `root`, of one element, depends on.
  SplitBackward(const Variable& root, const std::vector<Variable>& first);
  /// Adds to .grad of all other leaves. `before` are gradients from elsewhere that count before those added here.
  void finish(std::vector<std::pair<Variable, Tensor>> before = {});
  /// What of finish() has nothing to do with these leaves; they are left for it.
  void finish_but(const std::vector<Variable>& leaves);

 private:
  struct Part {
    Ref<Node> node;
    std::vector<Edge> edges;    // to the leaves that wait
    std::vector<Tensor> grads;  // of its outputs
  };
  static void run(std::vector<Part> parts, std::vector<std::pair<Edge, Tensor>> list);
  std::vector<Part> rest_;
};

/// Starts several backwards at once: a variable of one element whose backward() gives `grads` to `roots`. Undefined
/// ones are left out.
Variable joined(const std::vector<Variable>& roots, std::vector<Tensor> grads);

/// Gradients of `output` (times `gradient`) as tensors that nobody differentiates; undefined where it does not depend.
std::vector<Tensor> gradients(const Variable& output, const std::vector<Variable>& inputs, const Tensor& gradient = {},
                              bool retain_graph = false);

}  // namespace lockstep
