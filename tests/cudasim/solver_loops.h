#pragma once
// The algorithms of the fake cuSOLVER and cuBLAS (solvers.cpp): column-major, in place, computed in f64, with LAPACK's
// definitions of the results. Memory that the real libraries may overwrite is filled with NaN.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tests/cudasim/runtime.h"
// These fakes are compiled without sanitizers. A name of their own keeps the linker from taking their copies of Eigen's
// functions for Lockstep's.
#define Eigen EigenOfFakes
#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <Eigen/SVD>

namespace fake {

/// Fills memory with NaN.
template <class T> void spoil(T* p, int64_t count) { std::fill_n(p, count, std::numeric_limits<T>::quiet_NaN()); }

/// A matrix as its columns.
using Columns = std::vector<std::vector<double>>;
/// Reads an m x n matrix; `lead` is the distance of its columns.
template <class T> Columns load(const T* a, int m, int n, int lead) {
  Columns made;
  for (int j = 0; j < n; ++j) made.emplace_back(a + int64_t(j) * lead, a + int64_t(j) * lead + m);
  return made;
}
/// load() for iterative algorithms, whose results for NaN are undocumented: fails the device if an element is not
/// finite.
template <class T> Columns load_finite(const T* a, int m, int n, int lead) {
  Columns made = load(a, m, n, lead);
  for (auto& column : made)
    for (double& value : column)
      if (!std::isfinite(value)) {
        fail_device(cudaErrorLaunchFailure, "eigenvalues or singular values of a matrix that is not finite");
        value = 0;
      }
  return made;
}
/// Writes a matrix.
template <class T> void store(const Columns& columns, T* a, int lead) {
  for (size_t j = 0; j < columns.size(); ++j)
    for (size_t i = 0; i < columns[j].size(); ++i) a[j * size_t(lead) + i] = T(columns[j][i]);
}
/// x -= s y, from element `from` on.
inline void subtract(std::vector<double>& x, double s, const std::vector<double>& y, size_t from = 0) {
  for (size_t i = from; i < x.size(); ++i) x[i] -= s * y[i];
}

// --- LU, Cholesky, triangles ---

/// LU with partial pivoting (getrf); pivots are 1-based, info is the first zero pivot or 0.
template <class T> void lu(T* a, int n, int lead, int* pivots, int* info) {
  Columns x = load(a, n, n, lead);
  *info = 0;
  for (int k = 0; k < n; ++k) {
    int greatest = k;
    for (int i = k + 1; i < n; ++i)
      if (std::abs(x[k][i]) > std::abs(x[k][greatest])) greatest = i;
    pivots[k] = greatest + 1;
    for (auto& column : x) std::swap(column[k], column[greatest]);
    if (x[k][k] == 0) {
      if (*info == 0) *info = k + 1;
      continue;
    }
    for (int i = k + 1; i < n; ++i) x[k][i] = T(x[k][i] / x[k][k]);
    for (int j = k + 1; j < n; ++j) {
      subtract(x[j], x[j][k], x[k], size_t(k + 1));
      for (int i = k + 1; i < n; ++i) x[j][i] = T(x[j][i]);  // rounded to T, so that singular matrices are recognised
    }
  }
  store(x, a, lead);
}
/// Solves with these factors (getrs).
template <class T> void lu_solve(const T* a, int n, int lead, const int* pivots, T* b, int k, int lead_b) {
  const Columns x = load(a, n, n, lead);
  Columns y = load(b, n, k, lead_b);
  for (auto& column : y) {
    for (int i = 0; i < n; ++i) std::swap(column[i], column[pivots[i] - 1]);
    for (int j = 0; j < n; ++j) subtract(column, column[j], x[j], size_t(j + 1));
    for (int j = n - 1; j >= 0; --j) {
      column[j] /= x[j][j];
      for (int i = 0; i < j; ++i) column[i] -= column[j] * x[j][i];
    }
  }
  store(y, b, lead_b);
}
/// Cholesky of one triangle (potrf); info is the first minor that is not positive, or 0.
template <class T> void cholesky(T* a, int n, int lead, bool upper, int* info) {
  const auto at = [&](int i, int j) -> T& { return upper ? a[j + int64_t(i) * lead] : a[i + int64_t(j) * lead]; };
  *info = 0;
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < j; ++i) at(i, j) = std::numeric_limits<T>::quiet_NaN();
  for (int j = 0; j < n; ++j)
    for (int i = j; i < n; ++i) {
      double sum = at(i, j);
      for (int k = 0; k < j; ++k) sum -= double(at(i, k)) * double(at(j, k));
      if (i == j && sum <= 0) {
        *info = j + 1;
        return;
      }
      at(i, j) = T(i == j ? std::sqrt(sum) : sum / double(at(j, j)));
    }
}
/// Solves x a = b for a triangular a on the right (trsm).
template <class T> void triangular(const T* a, int n, int lead, bool upper, bool unit, T* b, int m, int lead_b) {
  const auto at = [&](int i, int j) { return double(a[i + int64_t(j) * lead]); };
  Columns x = load(b, m, n, lead_b);
  for (int step = 0; step < n; ++step) {
    const int j = upper ? step : n - 1 - step;
    for (int l = upper ? 0 : j + 1; l < (upper ? j : n); ++l) subtract(x[j], at(l, j), x[l]);
    for (double& value : x[j]) value /= unit ? 1.0 : at(j, j);
  }
  store(x, b, lead_b);
}
// --- by Eigen ---

/// As a matrix of Eigen, in f64.
inline Eigen::MatrixXd matrix_of(const Columns& columns, int m) {
  Eigen::MatrixXd made(m, int(columns.size()));
  for (size_t j = 0; j < columns.size(); ++j)
    for (int i = 0; i < m; ++i) made(i, int(j)) = columns[j][size_t(i)];
  return made;
}
/// Writes the first columns of a matrix.
template <class T> void store(const Eigen::MatrixXd& x, T* a, int lead, int columns) {
  for (int j = 0; j < columns; ++j)
    for (int i = 0; i < x.rows(); ++i) a[i + int64_t(j) * lead] = T(x(i, j));
}

/// QR by Householder reflections (geqrf).
template <class T> void householder(T* a, int m, int n, int lead, T* taus) {
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(matrix_of(load(a, m, n, lead), m));
  store(qr.matrixQR(), a, lead, n);
  for (int i = 0; i < std::min(m, n); ++i) taus[i] = T(qr.hCoeffs()[i]);
}
/// Forms the first n columns of Q (orgqr).
template <class T> void orthogonal(T* a, int m, int n, int k, int lead, const T* taus) {
  const Eigen::MatrixXd v = matrix_of(load(a, m, k, lead), m);
  const Eigen::VectorXd coefficients = Eigen::Map<const Eigen::Matrix<T, -1, 1>>(taus, k).template cast<double>();
  store(Eigen::householderSequence(v, coefficients) * Eigen::MatrixXd::Identity(m, n), a, lead, n);
}

/// Eigenvalues, ascending, and eigenvectors of a symmetric matrix (syevd, syevjBatched).
template <class T> void eigenvalues(T* a, int n, int lead, bool upper, bool vectors, T* values, int* info) {
  Eigen::MatrixXd x = matrix_of(load_finite(a, n, n, lead), n);
  if (upper) x.transposeInPlace();  // Eigen reads the lower triangle
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(x);
  Eigen::MatrixXd found = solver.eigenvectors();
  for (int i = 0; i < n; ++i) values[i] = T(solver.eigenvalues()[i]);
  // An H200's vectors are less orthogonal than LAPACK's. Here those of eigenvalues near 0 lean towards each other,
  // which the product with the eigenvalues does not show.
  const double unit = std::numeric_limits<T>::epsilon(),
               least = unit * n * x.triangularView<Eigen::Lower>().toDenseMatrix().cwiseAbs().maxCoeff();
  for (int i = 1; i < n; ++i)
    if (std::abs(values[i - 1]) < least && std::abs(values[i]) < least)
      found.col(i) -= 200 * n * unit * found.col(i - 1);
  for (int j = 0; j < n; ++j) spoil(a + int64_t(j) * lead, n);
  if (vectors) store(found, a, lead, n);
  *info = 0;
}

/// Singular values (gesvd, gesvdjBatched). Needs at least as many rows as columns. u gets `kept` columns, v gets n
/// (transposed: V^T); both may be nullptr.
template <class T>
void singular_values(T* a, int m, int n, int lead, T* values, T* u, int lead_u, int kept, T* v, int lead_v,
                     bool transposed, int* info) {
  const Eigen::JacobiSVD<Eigen::MatrixXd> svd(matrix_of(load_finite(a, m, n, lead), m),
                                              Eigen::ComputeFullU | Eigen::ComputeFullV);
  for (int i = 0; i < n; ++i) values[i] = T(svd.singularValues()[i]);
  for (int j = 0; j < n; ++j) spoil(a + int64_t(j) * lead, m);
  *info = 0;
  if (!u) return;
  store(svd.matrixU(), u, lead_u, kept);
  store(transposed ? Eigen::MatrixXd(svd.matrixV().transpose()) : svd.matrixV(), v, lead_v, n);
}

}  // namespace fake
