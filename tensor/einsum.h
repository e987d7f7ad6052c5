#pragma once
// The ellipsis of einsum. Internal: for ops_matmul.cpp, here and in autograd/.
#include <string>
#include <vector>

#include "tensor/shape.h"

namespace lockstep {

struct SpelledOut {
  std::string equation;       ///< with letters in place of the dots
  std::vector<Shape> shapes;  ///< to which the operands are to be expanded first
};
/// The dims that dots stand for get letters of their own, from the right, and broadcast. Without an arrow they come
/// first in the output.
SpelledOut spell_out(const std::string& equation, const std::vector<Shape>& shapes);

template <class Value> struct EllipsisFree {
  std::string equation;
  std::vector<Value> operands;
};
/// The same of operands, as views.
template <class Value>
EllipsisFree<Value> without_ellipsis(const std::string& equation, const std::vector<Value>& operands) {
  std::vector<Shape> shapes;
  for (const Value& x : operands) shapes.push_back(x.shape());
  SpelledOut whole = spell_out(equation, shapes);
  EllipsisFree<Value> free{std::move(whole.equation), operands};
  for (size_t i = 0; i < operands.size(); ++i)
    if (shapes[i] != whole.shapes[i]) free.operands[i] = operands[i].expand(whole.shapes[i]);
  return free;
}

}  // namespace lockstep
