#pragma once
// The kernels of linear algebra: by Eigen on the CPU (cpu/), by cuSOLVER on CUDA devices (cuda/solvers.cpp).
// linalg.cpp checks and allocates.
//
// Tensors are on one device, (batch, rows, columns), not empty, f32 or f64. Results are contiguous. Inputs are
// contiguous on the CPU and have any strides on other devices. On the CPU each matrix of a batch is computed by one
// thread, so results do not depend on the number of threads.
//
// `bad` receives a number for each matrix of the batch: 0 for success, else the number that the comment explains
// (positions count from 1). Kernels with `bad` wait for the device, because `bad` is on the host.
#include <vector>

#include "tensor/op.h"
#include "tensor/tensor.h"

namespace lockstep {

/// x = a^-1 b by LU with partial pivoting. bad: the position of the first pivot that is 0; x is then not finite.
using LuSolve = void(const Tensor& a, const Tensor& b, Tensor& x, std::vector<int64_t>& bad);
/// The determinant, its sign, and the logarithm of its absolute value. Each tensor has the shape (batch).
using LuDeterminant = void(const Tensor& a, Tensor& det, Tensor& sign, Tensor& log_abs);
/// The lower Cholesky factor; reads the lower triangle. bad: the order of the first leading minor that is not positive.
using Cholesky = void(const Tensor& a, Tensor& out, std::vector<int64_t>& bad);
/// QR by Householder reflections. The caller allocates r (batch, k, columns) and, if wanted, q (batch, rows, k).
using Qr = void(const Tensor& a, Tensor& q, Tensor& r);
/// Singular values s (batch, k) in descending order, k = min(rows, columns). If u and vh are defined, they receive the
/// singular vectors: the first k or all, by their shapes. bad: not 0 if `a` is not finite or there is no convergence.
using Svd = void(const Tensor& a, Tensor& u, Tensor& s, Tensor& vh, std::vector<int64_t>& bad);
/// Eigenvalues (batch, n) of symmetric matrices in ascending order. If `vectors` is defined, it receives the
/// eigenvectors as columns. Reads the lower triangle. bad: not 0 if `a` is not finite or there is no convergence.
using Eigh = void(const Tensor& a, Tensor& values, Tensor& vectors, std::vector<int64_t>& bad);
/// x = a^-1 b for a triangular `a`; reads only that triangle. With `unit`, the diagonal is not read and counts as 1.
using SolveTriangular = void(const Tensor& a, const Tensor& b, bool upper, bool unit, Tensor& x);
/// e^a by the Padé approximant of degree 13, scaling and squaring (Higham, 2005).
using MatrixExp = void(const Tensor& a, Tensor& out);

namespace on_cpu {
LuSolve lu_solve;
LuDeterminant lu_determinant;
Cholesky cholesky;
Qr qr;
Svd svd;
Eigh eigh;
SolveTriangular solve_triangular;
MatrixExp matrix_exp;
}  // namespace on_cpu
namespace on_cuda {
LuSolve lu_solve;
LuDeterminant lu_determinant;
Cholesky cholesky;
Qr qr;
Svd svd;
Eigh eigh;
SolveTriangular solve_triangular;
}  // namespace on_cuda

}  // namespace lockstep
