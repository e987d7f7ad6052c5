#pragma once
// Dense linear algebra by Eigen, which only cpu/linalg.cpp includes. Internal to the tensor library: tensor/linalg.h
// checks and allocates. Tensors are on the CPU, contiguous (batch, rows, columns), f32 or f64. Each matrix of a
// batch is computed by one thread, so results do not depend on the number of threads.
//
// `bad` receives a number for each matrix of the batch: 0 on success, else at least 1, as each function explains.
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::on_cpu {

/// x = a^-1 b by LU with partial pivoting. bad: the number (from 1) of the first pivot that is 0; x is then not finite.
void lu_solve(const Tensor& a, const Tensor& b, Tensor& x, std::vector<int64_t>& bad);
/// The determinant, its sign, and the logarithm of its absolute value. Each tensor has the shape (batch).
void lu_determinant(const Tensor& a, Tensor& det, Tensor& sign, Tensor& log_abs);
/// The lower Cholesky factor; reads the lower triangle. bad: the order of the first leading minor that is not positive.
void cholesky(const Tensor& a, Tensor& out, std::vector<int64_t>& bad);
/// QR by Householder reflections. The caller allocates r (batch, k, columns) and, if wanted, q (batch, rows, k).
void qr(const Tensor& a, Tensor& q, Tensor& r);
/// Singular values s (batch, k) in descending order, k = min(rows, columns). If u and vh are defined, they receive the
/// singular vectors: the first k or all, by their shapes. bad: not 0 if `a` is not finite or there is no convergence.
void svd(const Tensor& a, Tensor& u, Tensor& s, Tensor& vh, std::vector<int64_t>& bad);
/// Eigenvalues (batch, n) of symmetric matrices in ascending order. If `vectors` is defined, it receives the
/// eigenvectors as columns. Reads the lower triangle. bad: not 0 if `a` is not finite or there is no convergence.
void eigh(const Tensor& a, Tensor& values, Tensor& vectors, std::vector<int64_t>& bad);
/// x = a^-1 b for a triangular `a`; reads only that triangle. With `unit`, the diagonal is not read and counts as 1.
void solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool unit, Tensor& x);
/// e^a by the Padé approximant of degree 13, scaling and squaring (Higham, 2005).
void matrix_exp(const Tensor& a, Tensor& out);

}  // namespace lockstep::on_cpu
