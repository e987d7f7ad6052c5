#pragma once
// Linear algebra for Tensor and, with gradients, for Variable. Names, defaults, signs, order of results and
// broadcasting follow torch.linalg. The CPU uses Eigen, CUDA devices cuSOLVER. matrix_exp, and everything in a build
// without cuSOLVER, copies matrices to the CPU and results back.
#include <optional>
#include <string>

#include "autograd/ops.h"

namespace lockstep::linalg {

/// Results of qr(): r, and q with min(m, n) columns (reduced) or with m columns (complete), or r alone (r).
enum class QrMode { reduced, complete, r };

/// Result of inv_ex().
template <class Value> struct InverseOf {
  Value inverse;
  Tensor info;  ///< i64, (...): position (from 1) of a pivot that is 0, or 0 for none
};
/// Result of qr(): a = q r.
template <class Value> struct QrOf { Value q, r; };
/// Result of svd(): a = u diag(s) vh.
template <class Value> struct SvdOf { Value u, s, vh; };
/// Result of eigh(): eigenvalues (..., n) and eigenvectors (..., n, n) as columns.
template <class Value> struct EighOf { Value values, vectors; };
/// Result of slogdet(): det(a) = sign exp(logabsdet), each (...).
template <class Value> struct SlogdetOf {
  Value sign, logabsdet;  ///< sign 0 and logabsdet -inf for a singular matrix; sign has no gradient
};
/// Result of lstsq().
template <class Value> struct LstsqOf {
  /// Residuals: sums of squares (..., k) if m > n and all matrices have full rank, else of shape (0).
  Value solution, residuals;
  Tensor rank, singular_values;  ///< rank: i64 (...)
};

#define Value Tensor
#include "extensions/linear_algebra/linalg.def"
#undef Value
#define Value Variable
#include "extensions/linear_algebra/linalg.def"
#undef Value
/// Number of singular values (hermitian: magnitudes of eigenvalues) above max(atol, rtol times the largest), i64 (...).
/// atol and rtol have the same defaults as in pinv().
Tensor matrix_rank(const Tensor& a, std::optional<double> atol = {}, std::optional<double> rtol = {},
                   bool hermitian = false);
inline Tensor matrix_rank(const Variable& a, std::optional<double> atol = {}, std::optional<double> rtol = {},
                          bool hermitian = false) {
  return matrix_rank(a.tensor(), atol, rtol, hermitian);
}

/// Matrix of cofactors, the gradient of det(), also for singular matrices.
Tensor cofactors(const Tensor& a);

}  // namespace lockstep::linalg
