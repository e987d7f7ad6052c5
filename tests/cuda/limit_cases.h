#pragma once
// One table of operations for several limits: tensors of more than 2^32 elements (large_test.cpp), no rows, and memory
// that begins at odd elements (limits_test.cpp). In each case row r of every result depends on row r of the inputs
// only, so that single rows can be checked on the CPU.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensor/ops.h"

namespace testing {
using namespace lockstep;

/// An input: a tensor (rows, shape...), or just `shape` if `full`.
struct LimitInput {
  Shape shape;
  DType dtype = f16;
  int64_t below = 0;  ///< integers from 0 up to this bound; 0: 100
  bool full = false;  ///< true: shared by all rows
};
using Tensors = std::vector<Tensor>;
struct LimitCase {
  std::string name;
  std::vector<LimitInput> inputs;
  std::function<Tensors(Tensors)> run;  ///< may write to its inputs
  int64_t width = 0;                    ///< elements of a row of the largest tensor, if that is not an input
  double bound = -1;                    ///< bound of the error; -1: the default of against_cpu()
  /// Parts of the grid (0 to 1) that work on a row, if that is not row / rows.
  std::function<std::vector<double>(int64_t row, int64_t rows)> places = {};
  bool slow = false;  ///< true: each block does much work
};
std::vector<LimitCase> limit_cases();
/// Functions that return more cases. A test of an extension adds its own before main() begins.
std::vector<std::vector<LimitCase> (*)()>& more_limit_cases();

/// Runs `step` on p, its 16-bit gradient, two states and a 16-bit copy of p. together: as part of a StepBatch.
LimitCase step_case(std::string name, std::function<void(Device, Tensors&)> step, bool together = false);

/// Rows [begin, end) of input number `number`, on the CPU.
Tensor limit_rows(const LimitInput& input, int number, int64_t begin, int64_t end);
inline Shape with_rows(int64_t rows, const Shape& shape) {
  Shape all{rows};
  for (int d = 0; d < shape.rank(); ++d) all.push_back(shape[d]);
  return all;
}

}  // namespace testing
