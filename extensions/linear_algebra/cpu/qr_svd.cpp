// QR and SVD on the CPU. See kernels.h.
#include "extensions/linear_algebra/cpu/entries.h"

#include <Eigen/QR>
#include <Eigen/SVD>
#include <cmath>
#include <limits>
#include <optional>

#include "extensions/linear_algebra/cpu/bidiagonal.h"

namespace lockstep::on_cpu {
namespace {

/// Divides a by a power of two, so that squares neither overflow nor vanish, and returns that power.
template <class T> T bring_to_one(Dense<T>& a) {
  const T max_abs = a.size() > 0 ? a.cwiseAbs().maxCoeff() : T(0);
  if (!(max_abs > T(0)) || !std::isfinite(max_abs)) return T(1);
  const T scale = std::ldexp(T(1), std::max(std::ilogb(max_abs), std::numeric_limits<T>::min_exponent));
  a *= T(1) / scale;
  return scale;
}

/// Replaces c by Q c, where Q is a product of Householder reflections: column j of v, below element `shift` + j, and
/// tau[j]. is_identity: true if c is a square identity at first, which saves time.
template <class T> void reflect(const Dense<T>& v, const Column<T>& tau, int64_t shift, bool is_identity, Dense<T>& c) {
  Column<T> workspace;
  Eigen::HouseholderSequence<Dense<T>, Column<T>> q(v, tau);
  q.setLength(tau.size()).setShift(shift).applyThisOnTheLeft(c, workspace, is_identity);
}
/// The first `columns` columns of Q.
template <class T> Dense<T> columns_of(const Dense<T>& v, const Column<T>& tau, int64_t shift, int64_t columns) {
  Dense<T> q = Dense<T>::Identity(v.rows(), columns);
  reflect<T>(v, tau, shift, columns == v.rows(), q);
  return q;
}

/// True if there are many more rows than columns: then a QR decomposition first reduces the matrix to a small square.
template <class T> bool is_tall(const Dense<T>& a) { return a.rows() > 2 * a.cols() && a.cols() > 16; }

/// Singular values s of a and, with `vectors`, u and v with a = u diag(s) v^T (full: u is square). Returns false if the
/// iteration did not converge.
template <class T>
bool decompose(const Dense<T>& a, bool vectors, bool full, std::vector<double>& s, Dense<T>& u, Dense<T>& v) {
  const Eigen::internal::UpperBidiagonalization<Dense<T>> made(a);
  const int64_t n = a.cols();
  const auto& band = made.bidiagonal().coeffs();  // row 1: the diagonal; row 0: the numbers above it, from column 1 on
  s.assign(size_t(n), 0);
  std::vector<double> e(size_t(n) - 1);
  for (int64_t i = 0; i < n; ++i) s[size_t(i)] = double(band(1, i));
  for (int64_t i = 1; i < n; ++i) e[size_t(i) - 1] = double(band(0, i));
  Columns<T> left, right;
  if (vectors) {
    const Dense<T>& both = made.householder();
    u = columns_of<T>(both, both.diagonal(), 0, full ? a.rows() : n);
    v = columns_of<T>(both.topRows(n).transpose(), both.diagonal(1).head(n - 1), 1, n);
    left = {u.data(), u.rows()}, right = {v.data(), v.rows()};
  }
  return bidiagonal_svd(s, e, left, right);
}

}  // namespace

void qr(const Tensor& a, Tensor& q, Tensor& r) {
  each_entry(a, "qr", [&]<class T>(int64_t i) {
    Dense<T> x = entry<T>(a, i);
    const T scale = bring_to_one<T>(x);
    const Eigen::HouseholderQR<Dense<T>> made(x);
    if (q.defined()) entry<T>(q, i) = columns_of<T>(made.matrixQR(), made.hCoeffs(), 0, q.size(2));
    x = made.matrixQR().template triangularView<Eigen::Upper>();
    entry<T>(r, i) = x.topRows(r.size(1)) * scale;
  });
}

void svd(const Tensor& a, Tensor& u, Tensor& s, Tensor& vh, std::vector<int64_t>& bad) {
  const bool vectors = u.defined(), full = vectors && u.size(1) == u.size(2) && vh.size(1) == vh.size(2);
  each_entry(a, "svd", [&]<class T>(int64_t i) {
    const bool wide = a.size(1) < a.size(2);
    Dense<T> x = wide ? Dense<T>(entry<T>(a, i).transpose()) : Dense<T>(entry<T>(a, i));
    bad[size_t(i)] = !x.allFinite();
    if (bad[size_t(i)]) return;
    const int64_t n = x.cols();
    std::optional<Eigen::HouseholderQR<Dense<T>>> first;
    const T scale = bring_to_one<T>(x);
    if (is_tall<T>(x) && !full) {
      first.emplace(x);
      x = first->matrixQR().template triangularView<Eigen::Upper>();
      x.conservativeResize(n, n);
    }
    std::vector<double> values;
    Dense<T> left, right;
    bad[size_t(i)] = !decompose<T>(x, vectors, full, values, left, right);
    if (bad[size_t(i)]) return;
    for (int64_t k = 0; k < n; ++k) entry<T>(s, i)(k) = T(values[size_t(k)]) * scale;
    if (!vectors) return;
    if (first) {
      Dense<T> tall = Dense<T>::Zero(first->rows(), n);
      tall.topRows(n) = left;
      reflect<T>(first->matrixQR(), first->hCoeffs(), 0, false, tall);
      left.swap(tall);
    }
    if (wide) {
      entry<T>(u, i) = right;
      entry<T>(vh, i) = left.transpose();
    } else {
      entry<T>(u, i) = left;
      entry<T>(vh, i) = right.transpose();
    }
  });
}

}  // namespace lockstep::on_cpu
