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
/// The inner product.
inline double dot(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}
/// x -= s y, from element `from` on.
inline void subtract(std::vector<double>& x, double s, const std::vector<double>& y, size_t from = 0) {
  for (size_t i = from; i < x.size(); ++i) x[i] -= s * y[i];
}
/// (x, y) = (c x - s y, s x + c y).
inline void rotate(std::vector<double>& x, std::vector<double>& y, double c, double s) {
  for (size_t i = 0; i < x.size(); ++i) {
    const double before = x[i];
    x[i] = c * before - s * y[i], y[i] = s * before + c * y[i];
  }
}
/// The m x n identity.
inline Columns identity(size_t m, size_t n) {
  Columns made(n, std::vector<double>(m, 0.0));
  for (size_t i = 0; i < std::min(m, n); ++i) made[i][i] = 1;
  return made;
}

// --- LU, Cholesky, triangles, QR ---

/// LU with partial pivoting (getrf); pivots are 1-based, info is the first zero pivot or 0.
template <class T> void lu(T* a, int n, int lead, int* pivots, int* info) {
  Columns x = load(a, n, n, lead);
  *info = 0;
  for (int k = 0; k < n; ++k) {
    int most = k;
    for (int i = k + 1; i < n; ++i)
      if (std::abs(x[k][i]) > std::abs(x[k][most])) most = i;
    pivots[k] = most + 1;
    for (auto& column : x) std::swap(column[k], column[most]);
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
/// Applies a Householder reflection: x -= tau v v^T x, where v is 1 at `from` and a stored column below.
inline void reflect(const std::vector<double>& v, size_t from, double tau, std::vector<double>& x) {
  double sum = x[from];
  for (size_t i = from + 1; i < x.size(); ++i) sum += v[i] * x[i];
  x[from] -= tau * sum;
  subtract(x, tau * sum, v, from + 1);
}
/// QR by Householder reflections (geqrf).
template <class T> void householder(T* a, int m, int n, int lead, T* taus) {
  Columns x = load(a, m, n, lead);
  for (int k = 0; k < std::min(m, n); ++k) {
    // scaled by `size`: the squares of what is left of a rank-deficient column would underflow
    double size = 0, rest = 0, tau = 0;
    for (int i = k; i < m; ++i) size = std::max(size, std::abs(x[k][i]));
    for (int i = k + 1; i < m; ++i) rest += x[k][i] / size * (x[k][i] / size);
    if (rest > 0) {
      const double first = x[k][k] / size, beta = -std::copysign(std::sqrt(first * first + rest), first);
      tau = (beta - first) / beta;
      for (int i = k + 1; i < m; ++i) x[k][i] = x[k][i] / size / (first - beta);
      for (int j = k + 1; j < n; ++j) reflect(x[k], size_t(k), tau, x[j]);
      x[k][k] = beta * size;
    }
    taus[k] = T(tau);
  }
  store(x, a, lead);
}
/// Forms the first n columns of Q (orgqr).
template <class T> void orthogonal(T* a, int m, int n, int k, int lead, const T* taus) {
  const Columns v = load(a, m, k, lead);
  Columns q = identity(size_t(m), size_t(n));
  for (int i = k - 1; i >= 0; --i)
    for (auto& column : q) reflect(v[i], size_t(i), double(taus[i]), column);
  store(q, a, lead);
}

// --- Jacobi's methods ---

/// Eigenvalues, ascending, and eigenvectors of a symmetric matrix by Jacobi rotations (syevd, syevjBatched).
template <class T> void eigenvalues(T* a, int n, int lead, bool upper, bool vectors, T* values, int* info) {
  Columns x = load_finite(a, n, n, lead), v = identity(size_t(n), size_t(n));
  double size = 0;
  for (int j = 0; j < n; ++j)
    for (int i = 0; i <= j; ++i) {
      const double value = upper ? x[j][i] : x[i][j];
      x[j][i] = x[i][j] = value, size = std::max(size, std::abs(value));
    }
  for (bool turned = true; turned;) {
    turned = false;
    for (int p = 0; p < n; ++p)
      for (int q = p + 1; q < n; ++q) {
        if (!(std::abs(x[q][p]) > 1e-18 * size)) continue;
        turned = true;
        const double theta = (x[q][q] - x[p][p]) / (2 * x[q][p]);
        const double t = std::copysign(1 / (std::abs(theta) + std::sqrt(theta * theta + 1)), theta);
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        rotate(x[p], x[q], c, s), rotate(v[p], v[q], c, s);
        for (auto& column : x) {
          const double before = column[p];
          column[p] = c * before - s * column[q], column[q] = s * before + c * column[q];
        }
        x[q][p] = x[p][q] = 0;
      }
  }
  std::vector<int> order(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) order[size_t(i)] = i;
  std::sort(order.begin(), order.end(), [&](int i, int j) { return x[i][i] < x[j][j]; });
  Columns sorted;
  for (const int i : order) sorted.push_back(v[i]), values[sorted.size() - 1] = T(x[i][i]);
  // An H200's vectors are less orthogonal than LAPACK's. Here those of eigenvalues near 0 lean towards each other,
  // which the product with the eigenvalues does not show.
  const double least = std::numeric_limits<T>::epsilon() * n * size;
  for (int i = 1; i < n; ++i)
    if (std::abs(values[i - 1]) < least && std::abs(values[i]) < least)
      subtract(sorted[size_t(i)], 200 * n * double(std::numeric_limits<T>::epsilon()), sorted[size_t(i - 1)]);
  for (int j = 0; j < n; ++j) spoil(a + int64_t(j) * lead, n);
  if (vectors) store(sorted, a, lead);
  *info = 0;
}

/// Fills in empty columns, up to `count` columns, with vectors orthogonal to the others.
inline void complete(Columns& u, size_t rows, size_t count) {
  u.resize(count);
  for (auto& missing : u) {
    if (!missing.empty()) continue;
    std::vector<double> covered(rows, 0.0);
    for (const auto& column : u)
      for (size_t i = 0; i < column.size(); ++i) covered[i] += column[i] * column[i];
    std::vector<double> x(rows, 0.0);
    x[size_t(std::min_element(covered.begin(), covered.end()) - covered.begin())] = 1;
    for (int again = 0; again < 2; ++again)
      for (const auto& column : u)
        if (!column.empty()) subtract(x, dot(column, x), column);
    const double length = std::sqrt(dot(x, x));
    for (double& value : x) value /= length;
    missing = x;
  }
}
/// Singular values by one-sided Jacobi rotations (gesvd, gesvdjBatched). Needs at least as many rows as columns. u gets
/// `kept` columns, v gets n (transposed: V^T); both may be nullptr.
template <class T>
void singular_values(T* a, int m, int n, int lead, T* values, T* u, int lead_u, int kept, T* v, int lead_v,
                     bool transposed, int* info) {
  Columns x = load_finite(a, m, n, lead), right = identity(size_t(n), size_t(n)), left;
  double size = 0;
  for (auto& column : x)
    for (const double value : column) size = std::max(size, std::abs(value));
  if (size == 0) size = 1;
  for (auto& column : x)
    for (double& value : column) value /= size;
  for (bool turned = true; turned;) {
    turned = false;
    for (int p = 0; p < n; ++p)
      for (int q = p + 1; q < n; ++q) {
        const double xx = dot(x[p], x[p]), yy = dot(x[q], x[q]), xy = dot(x[p], x[q]);
        if (!(std::abs(xy) > 4e-16 * std::sqrt(xx) * std::sqrt(yy)) || std::min(xx, yy) < 1e-40) continue;
        turned = true;
        const double theta = (yy - xx) / (2 * xy);
        const double t = std::copysign(1 / (std::abs(theta) + std::sqrt(theta * theta + 1)), theta);
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        rotate(x[p], x[q], c, s), rotate(right[p], right[q], c, s);
      }
  }
  std::vector<std::pair<double, int>> order;
  for (int j = 0; j < n; ++j) order.emplace_back(-std::sqrt(dot(x[j], x[j])), j);
  std::sort(order.begin(), order.end());
  Columns sorted;
  for (int j = 0; j < n; ++j) {
    const auto& [minus, place] = order[size_t(j)];
    values[j] = T(-minus * size);
    left.emplace_back();
    if (-minus > 1e-15 * -order[0].first)
      for (const double value : x[place]) left.back().push_back(value / -minus);
    sorted.push_back(right[place]);
  }
  for (int j = 0; j < n; ++j) spoil(a + int64_t(j) * lead, m);
  *info = 0;
  if (!u) return;
  complete(left, size_t(m), size_t(kept));
  store(left, u, lead_u);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) v[i + int64_t(j) * lead_v] = T(transposed ? sorted[i][j] : sorted[j][i]);
}

}  // namespace fake
