#pragma once
// One table of operations for several limits: tensors of more than 2^32 elements (large_test.cpp), no rows, and memory
// that begins at odd elements (limits_test.cpp). In each case row r of every result follows from row r of the inputs,
// so that a few rows can be checked on the CPU.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensor/ops.h"

namespace lockstep::testing {

/// A tensor (rows, shape...), or `shape` itself.
struct LimitInput {
  Shape shape;
  DType dtype = f16;
  int64_t below = 0;   ///< whole numbers: from 0 up to it; 0: 100
  bool whole = false;  ///< the same for all rows
};
using Tensors = std::vector<Tensor>;
struct LimitCase {
  std::string name;
  std::vector<LimitInput> inputs;
  std::function<Tensors(Tensors)> run;  ///< may write to the inputs
  int64_t width = 0;                    ///< of a row of the largest tensor, where that is no input
  double bound = -1;                    ///< of errors; -1: as against_cpu()
  /// Parts of the grid (0 to 1) at which a row is worked on, where it is not row / rows.
  std::function<std::vector<double>(int64_t row, int64_t rows)> places = {};
  bool slow = false;  ///< each block does much
};
std::vector<LimitCase> limit_cases();

/// Rows begin to end of input number `number`, on the CPU.
Tensor limit_rows(const LimitInput& input, int number, int64_t begin, int64_t end);
inline Shape with_rows(int64_t rows, const Shape& shape) {
  Shape all{rows};
  for (int d = 0; d < shape.rank(); ++d) all.push_back(shape[d]);
  return all;
}

}  // namespace lockstep::testing
