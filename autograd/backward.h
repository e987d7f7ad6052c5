#pragma once
// A backward pass as a derivative sees it: gradients of the outputs come in, gradients of the inputs go out.
#include <functional>
#include <type_traits>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

class Node;
class Saved;
struct Edge;

/// Facts about the running pass, for derivatives.
struct PassInfo {
  bool retains = false;                       // true: the graph is kept
  const std::vector<Edge>* wanted = nullptr;  // grad(): the node outputs whose gradients it returns
  std::vector<Variable> starts;               // where else the pass continues: see BackwardOf::through()
};

/// Argument of a derivative. In a plain pass values are tensors (Backward). In a recorded pass (create_graph) they are
/// variables on the tape, so that they can be differentiated again (Pearlmutter, 1994: a product with the Hessian is
/// the gradient of a gradient times a vector). A closure that takes `auto& back` serves both. One that takes Backward&
/// has no second derivative: a recorded pass then throws an Error that names the operation.
template <class V> class BackwardOf {
 public:
  using Value = V;  ///< type of gradients
  static constexpr bool is_recorded = std::is_same_v<V, Variable>;
  /// For the derivative of `node` in `pass`.
  BackwardOf(PassInfo& pass, const Ref<Node>& node) : pass_(pass), node_(node) {}
  bool retains() const { return pass_.retains; }  ///< true: the graph is kept, saved tensors must stay as they are
  /// Gradient of output i; undefined if none arrived (only possible with several outputs). The derivative may move this
  /// tensor away, or overwrite it when Tensor::is_exclusive() is true.
  V& grad(int i = 0) const;
  /// True if input i requires a gradient. In a recorded grad(), only if a wanted gradient depends on that gradient.
  bool needs(int i) const;
  /// Adds `grad` to the gradient of input i. If the operation broadcast the input, `grad` is first summed to the
  /// input's shape.
  void give(int i, V grad) const;
  /// The type that input() and output() return: in a recorded pass a variable on the tape.
  using Held = std::conditional_t<is_recorded, Variable, const Tensor&>;
  Held input(int i, const Saved& saved) const;       ///< the saved input i; Error if changed in place
  Held output(const Saved& saved, int i = 0) const;  ///< the saved output i; Error if changed in place

  /// The gradient that other operations have given to input i so far, for a derivative that adds to it in place (such
  /// as that of embedding, which is mostly zeros). Undefined if there is none yet, if its memory has gaps, in recorded
  /// passes, and in AnomalyMode, which checks every gradient by itself.
  Tensor partial(int i) const;
  /// The derivative of the unary operation that computed input i, if no other node uses input i and nobody reads that
  /// input's gradient; else, and in recorded passes, null. A caller must apply it to the gradient before give().
  const struct UnaryGrad* fold(int i) const;

  using Variables = std::vector<Variable>;  ///< inputs or results of an operation
  /// In a recorded pass, for kernels whose derivative cannot be recorded. `composed` computes the same result, at the
  /// inputs in `saved`, from operations whose derivatives can be. The pass continues through these operations to the
  /// inputs.
  void through(const std::vector<const Saved*>& saved, const std::function<Variable(const Variables&)>& composed) const;
  /// through() for an operation with several results.
  void through_all(const std::vector<const Saved*>& saved,
                   const std::function<Variables(const Variables&)>& composed) const;

 private:
  PassInfo& pass_;
  const Ref<Node>& node_;
};
/// Argument of derivatives in plain passes.
class Backward final : public BackwardOf<Tensor> {
  using BackwardOf::BackwardOf;
};
/// Argument of derivatives in recorded passes.
class RecordedBackward final : public BackwardOf<Variable> {
  using BackwardOf::BackwardOf;
};

/// The type of gradients in a closure whose argument is a `Back`.
template <class Back> using Value = typename std::remove_reference_t<Back>::Value;

}  // namespace lockstep
