#pragma once
// The functions of tensor/linalg.h on Variable, with gradients.
#include "autograd/ops.h"
#include "tensor/linalg.h"

namespace lockstep::linalg {

#define Value Variable
#include "tensor/linalg.def"
#undef Value
/// Number of singular values above the tolerance; not differentiable.
inline Tensor matrix_rank(const Variable& a, std::optional<double> atol = {}, std::optional<double> rtol = {},
                          bool hermitian = false) {
  return matrix_rank(a.tensor(), atol, rtol, hermitian);
}

}  // namespace lockstep::linalg
