#pragma once
// Linear algebra on Tensor; autograd/linalg.h has the same names for Variable. Names, defaults, signs, orders and
// broadcasting are those of torch.linalg. On the CPU by Eigen, on CUDA devices by cuSOLVER; matrix_exp, and in a build
// without cuSOLVER everything, copies matrices to the CPU and results back.
#include <optional>
#include <string>

#include "tensor/ops.h"

namespace lockstep::linalg {

enum class QrMode { reduced, complete, r };

template <class Value> struct InverseOf {
  Value inverse;
  Tensor info;  ///< i64, (...)
};
template <class Value> struct QrOf { Value q, r; };
template <class Value> struct SvdOf { Value u, s, vh; };
template <class Value> struct EighOf { Value values, vectors; };
template <class Value> struct SlogdetOf {
  Value sign, logabsdet;  ///< 0 and -inf for a singular matrix; sign has no gradient
};
template <class Value> struct LstsqOf {
  Value solution, residuals;     ///< sums of squares (..., k), when m > n and all ranks are full; else of shape (0)
  Tensor rank, singular_values;  ///< rank: i64
};

#define Value Tensor
#include "tensor/linalg.def"
#undef Value
/// How many singular values (hermitian: sizes of eigenvalues) are above max(atol, rtol times the largest), see pinv.
Tensor matrix_rank(const Tensor& a, std::optional<double> atol = {}, std::optional<double> rtol = {},
                   bool hermitian = false);

/// For autograd: solve() of matrices alone, and the determinants' gradient (of any matrix, also a singular one).
Tensor cofactors(const Tensor& a);

}  // namespace lockstep::linalg
