#pragma once
// Dense matrices by Eigen, which only cpu/linalg.cpp sees. Internal to the tensor library; tensor/linalg.h checks and
// allocates. Tensors are on the CPU, contiguous (batch, rows, columns), f32 or f64. Entries of a batch are shared out
// to threads, a matrix is computed by one: results do not depend on the number of threads.
//
// `bad` gets a number for each entry of the batch: 0 where all went well, else the place (from 1) of what is wrong.
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::on_cpu {

/// x = a^-1 b by LU with partial pivoting; bad: the first pivot that is 0 (x is then infinite or NaN).
void lu_solve(const Tensor& a, const Tensor& b, Tensor& x, std::vector<int64_t>& bad);
/// Determinant, its sign and the logarithm of its size, each (batch).
void lu_determinant(const Tensor& a, Tensor& det, Tensor& sign, Tensor& log_abs);
/// Lower factor of what the lower triangle says; bad: the order of the first leading minor that is not positive.
void cholesky(const Tensor& a, Tensor& out, std::vector<int64_t>& bad);
/// Householder. q (batch, rows, k) or undefined, r (batch, k, columns).
void qr(const Tensor& a, Tensor& q, Tensor& r);
/// Singular values s (batch, k) from the largest; u and vh are both undefined, thin or full, as their shapes say. bad:
/// not finite, or it did not converge.
void svd(const Tensor& a, Tensor& u, Tensor& s, Tensor& vh, std::vector<int64_t>& bad);
/// Of symmetric matrices, of which it reads the lower triangle: values (batch, n) from the smallest, vectors as columns
/// or undefined. bad: as svd's.
void eigh(const Tensor& a, Tensor& values, Tensor& vectors, std::vector<int64_t>& bad);
/// x = a^-1 b of triangular a, of which it reads one triangle (unit: without the diagonal, which counts as 1).
void solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool unit, Tensor& x);
/// e^a by the Padé approximant of degree 13, scaling and squaring (Higham, 2005).
void matrix_exp(const Tensor& a, Tensor& out);

}  // namespace lockstep::on_cpu
