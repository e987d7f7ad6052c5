#pragma once
// Solvers: the functions that decompose matrices on a device. One struct of function pointers, filled for the CPU in
// linalg.cpp (from cpu/linalg.h, which documents each function) and for CUDA in cuda/solvers.cpp. Internal; linalg.cpp
// checks and allocates.
//
// Tensors are on one device, (batch, rows, columns), not empty, f32 or f64. Results are contiguous. Inputs are
// contiguous on the CPU and have any strides on other devices. The output `bad` has a number for each matrix: 0 for
// success, else the number that the function's comment explains (positions count from 1). Functions with `bad` wait for
// the device, because `bad` is on the host.
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

/// The functions that decompose matrices on one device. cpu/linalg.h documents them in full.
struct Solvers {
  /// x = a^-1 b. bad: the position of the first pivot that is 0, counted from 1.
  void (*lu_solve)(const Tensor& a, const Tensor& b, Tensor& x, std::vector<int64_t>& bad);
  /// The determinant, its sign, and the logarithm of its absolute value.
  void (*lu_determinant)(const Tensor& a, Tensor& det, Tensor& sign, Tensor& log_abs);
  /// The lower Cholesky factor. bad: the order of the first leading minor that is not positive.
  void (*cholesky)(const Tensor& a, Tensor& out, std::vector<int64_t>& bad);
  void (*qr)(const Tensor& a, Tensor& q, Tensor& r);  ///< q may be undefined
  /// Singular values, and vectors if u and vh are defined. bad: not 0 if the matrix has NaN or infinity, or if the
  /// iteration did not converge.
  void (*svd)(const Tensor& a, Tensor& u, Tensor& s, Tensor& vh, std::vector<int64_t>& bad);
  /// Eigenvalues of symmetric matrices (reads the lower triangle), and vectors if `vectors` is defined. bad: not 0 if
  /// the matrix has NaN or infinity, or if the iteration did not converge.
  void (*eigh)(const Tensor& a, Tensor& values, Tensor& vectors, std::vector<int64_t>& bad);
  /// x = a^-1 b for triangular a. unit: takes every element of a's diagonal as 1.
  void (*solve_triangular)(const Tensor& a, const Tensor& b, bool upper, bool unit, Tensor& x);
};

}  // namespace lockstep
