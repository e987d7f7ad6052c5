#pragma once
// Replaces the ellipsis (...) of an einsum equation by letters. Internal: used by einsum() of Tensor and of Variable.
#include <string>
#include <vector>

#include "tensor/shape.h"

namespace lockstep {

/// An equation without ellipsis, and the shapes of its operands.
struct SpelledOut {
  std::string equation;       ///< the equation, with letters in place of ...
  std::vector<Shape> shapes;  ///< shapes to which the operands must first be expanded
};
/// Replaces the ellipsis by new letters, one for each dim that it stands for. These dims are aligned from the right and
/// broadcast. In an equation without ->, these dims come first in the output. Error for a malformed equation or sizes
/// that do not broadcast.
SpelledOut spell_out(const std::string& equation, const std::vector<Shape>& shapes);

/// Result of without_ellipsis().
template <class Value> struct EllipsisFree {
  std::string equation;
  std::vector<Value> operands;
};
/// spell_out() applied to operands, which are expanded as views.
template <class Value>
EllipsisFree<Value> without_ellipsis(const std::string& equation, const std::vector<Value>& operands) {
  std::vector<Shape> shapes;
  for (const Value& x : operands) shapes.push_back(x.shape());
  SpelledOut full = spell_out(equation, shapes);
  EllipsisFree<Value> free{std::move(full.equation), operands};
  for (size_t i = 0; i < operands.size(); ++i)
    if (shapes[i] != full.shapes[i]) free.operands[i] = operands[i].expand(full.shapes[i]);
  return free;
}

}  // namespace lockstep
