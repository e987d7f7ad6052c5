#pragma once
// A backward pass in two parts, for pipelines: first the gradients of a stage's inputs, which the previous stage waits
// for; later the gradients of its weights. Gives the same bits as backward().
//
//   x ──▶ matmul ──▶ relu ──▶ matmul ──▶ loss    first part: the path to x. Each matmul keeps the gradient of its
//           ▲                   ▲                output and its saved tensors.
//          w1                  w2                finish(): the edges to w1 and w2.
#include <utility>
#include <vector>

#include "autograd/tape.h"

namespace lockstep {

/// One split backward pass; runs its first part when constructed.
class SplitBackward {
 public:
  /// Runs backward from `root`, which has one element, to the leaves `first`, and adds to their .grad. Error unless all
  /// of `first` are leaves that require grad.
  SplitBackward(const Variable& root, const std::vector<Variable>& first);
  /// Runs the second part: adds to the .grad of all leaves not in `first`. `before`: pairs of a leaf and a gradient,
  /// which is added to the leaf's .grad before the gradients of this pass.
  void finish(std::vector<std::pair<Variable, Tensor>> before = {});
  /// Runs the second part for all leaves except `leaves` and those that share an operation with one of them. Call
  /// finish() later to run it for the excepted ones.
  void finish_but(const std::vector<Variable>& leaves);

 private:
  static void run(std::vector<tape::GradAt> list);
  std::vector<tape::GradAt> rest_;  // gradients of the nodes with edges to other leaves, by descending number
};

/// Joins several backward passes into one. The returned variable has one element; its backward() starts at all `roots`
/// with the incoming gradients `grads`. Skips roots that do not require grad, and undefined gradients.
Variable joined(const std::vector<Variable>& roots, std::vector<Tensor> grads);

/// Gradients of the sum of output * gradient with respect to `inputs`. Their computation is not recorded. An input on
/// which `output` does not depend gets an undefined gradient.
std::vector<Tensor> gradients(const Variable& output, const std::vector<Variable>& inputs, const Tensor& gradient = {},
                              bool retain_graph = false);

}  // namespace lockstep
