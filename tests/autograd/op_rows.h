#pragma once
// Rows of operations whose derivatives are checked against central differences in f64.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "tests/autograd/loss_inputs.h"
#include "tests/devices.h"

namespace lockstep {

/// An operation, the shapes of its inputs, and the interval that they are drawn from.
struct OpRow {
  std::string name;
  std::vector<Shape> shapes;
  std::function<Variable(const Inputs&)> fn;
  double low = -2, high = 2;
};

/// The row of an expression of x[0], x[1] and so on, whose shapes follow.
#define OP_ROW(expression, ...)                                                        \
  {                                                                                    \
#expression, {__VA_ARGS__ }, [=](const lockstep::Inputs& x) { return expression; } \
  }

/// Checks the first and second derivatives of a row, at contiguous inputs, at views, and for one input at a time.
inline void check_row(const OpRow& row) {
  CAPTURE(row.name);
  Inputs inputs;
  for (const Shape& shape : row.shapes) inputs.push_back(sampled(shape, row.low, row.high));
  CHECK(gradcheck(row.fn, inputs) == "");
  int64_t elements = 0;
  for (const Variable& input : inputs) elements += input.numel();
  // A device uses the same formulas: second derivatives of small rows are enough there.
  if (!row.name.starts_with("trigamma") && (default_device().is_cpu() || elements <= 24))
    CHECK(gradgradcheck(row.fn, inputs) == "");
  // Repeat it with strided views: every second column of a transposed tensor.
  Inputs views;
  for (const Shape& shape : row.shapes) {
    Shape wide = shape;
    if (wide.empty()) wide.push_back(3);
    else wide[wide.rank() - 1] *= 2;
    Dims reversed, order;
    for (int d = wide.rank() - 1; d >= 0; --d) reversed.push_back(wide[d]), order.push_back(d);
    const Tensor flipped = sampled(reversed, row.low, row.high).tensor().permute(order);
    views.push_back(Variable(shape.empty() ? flipped.select(0, 1) : flipped.slice(-1, 1, end_of_dim, 2), true));
  }
  CHECK(gradcheck(row.fn, views) == "");
  // A gradient for one input at a time: nothing is saved or computed for the others.
  for (size_t only = 0; only < inputs.size() && inputs.size() > 1; ++only) {
    Inputs one;
    for (size_t i = 0; i < inputs.size(); ++i) one.push_back(Variable(inputs[i].tensor(), i == only));
    CAPTURE(only);
    CHECK(gradcheck(row.fn, one) == "");
  }
}

}  // namespace lockstep
