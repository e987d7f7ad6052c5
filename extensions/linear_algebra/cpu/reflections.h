#pragma once
// Decompositions by Householder reflections, panel by panel. They reduce a matrix to a triangle (QR), to a bidiagonal
// matrix (for singular values) or to a tridiagonal one (for eigenvalues). bidiagonal.cpp then computes the singular
// values or eigenvalues. This header includes Eigen, so only cpu/linalg.cpp may include it. The code uses few kinds of
// matrix products, because each takes a second to compile. Eigen's own decompositions would take a minute.
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "extensions/linear_algebra/cpu/bidiagonal.h"

namespace lockstep::on_cpu {

template <class T> using Dense = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;  ///< a matrix
template <class T> using Column = Eigen::Matrix<T, Eigen::Dynamic, 1>;              ///< a column vector
template <class T> using Part = Eigen::Ref<Dense<T>, 0, Eigen::OuterStride<>>;      ///< a part of a matrix
/// A part of a matrix, read-only.
template <class T> using Reading = Eigen::Ref<const Dense<T>, 0, Eigen::OuterStride<>>;

// The code in this file uses only these functions for matrix products, so that the compiler compiles each product once.
template <class T> Column<T> times(const Reading<T>& a, const Column<T>& x) { return a * x; }  ///< a x
/// a^T x.
template <class T> Column<T> transposed_times(const Reading<T>& a, const Column<T>& x) { return a.transpose() * x; }
template <class T> Dense<T> product(const Reading<T>& a, const Reading<T>& b) { return a * b; }  ///< a b
/// c -= a b
template <class T> void subtract(Part<T> c, const Reading<T>& a, const Reading<T>& b) { c.noalias() -= a * b; }

/// The Householder reflection 1 - tau x x^T, x[0] = 1, that maps a vector to (beta, 0, ...). beta has LAPACK's sign.
template <class T> struct Reflection { T beta, tau; };
/// Replaces a vector by the x of the reflection that maps it to (beta, 0, ...), and returns beta and tau.
template <class T> Reflection<T> reflect(Column<T>& x) {
  const T first = x(0), rest = x.size() > 1 ? x.tail(x.size() - 1).squaredNorm() : T(0);
  x(0) = 1;
  if (rest <= std::numeric_limits<T>::min()) {
    x.tail(x.size() - 1).setZero();
    return {first, T(0)};
  }
  const T size = std::sqrt(first * first + rest), beta = first >= T(0) ? -size : size;
  x.tail(x.size() - 1) /= first - beta;
  return {beta, (beta - first) / beta};
}

/// Divides a by a power of two, so that squares neither overflow nor vanish, and returns that power.
template <class T> T bring_to_one(Dense<T>& a) {
  const T most = a.size() > 0 ? a.cwiseAbs().maxCoeff() : T(0);
  if (!(most > T(0)) || !std::isfinite(most)) return T(1);
  const T scale = std::ldexp(T(1), std::max(std::ilogb(most), std::numeric_limits<T>::min_exponent));
  a *= T(1) / scale;
  return scale;
}

/// Number of columns of a panel.
constexpr int64_t panel = 32;

/// The decomposition a = U B V^T. B is bidiagonal, with the diagonal d and the numbers e above the diagonal. U and V
/// are products of reflections, whose vectors are the columns of u and v.
template <class T> struct Bidiagonal {
  Column<T> d, e, tau_u, tau_v;
  Dense<T> u, v;  // reflections, one per column

  /// Decomposes a, which must have at least as many rows as columns. Overwrites a.
  explicit Bidiagonal(Dense<T>& a) {
    const int64_t m = a.rows(), n = a.cols();
    d.resize(n), e.setZero(n), tau_u.setZero(n), tau_v.setZero(n);
    u.setZero(m, n), v.setZero(n, n);
    Dense<T> x, y;  // within a panel the matrix is a - u y^T - x v^T
    for (int64_t k = 0; k < n; k += panel) {
      const int64_t width = std::min(panel, n - k);
      x.setZero(m, width), y.setZero(n, width);
      for (int64_t j = 0; j < width; ++j) {
        const int64_t i = k + j, rows = m - i, rest = n - i - 1;
        Column<T> c = a.col(i).tail(rows);
        if (j > 0) {
          c -= times<T>(u.block(i, k, rows, j), y.row(i).head(j).transpose());
          c -= times<T>(x.block(i, 0, rows, j), v.row(i).segment(k, j).transpose());
        }
        const Reflection<T> below = reflect<T>(c);
        d(i) = below.beta, tau_u(i) = below.tau;
        u.col(i).tail(rows) = c;
        if (rest == 0) break;
        Column<T> z = transposed_times<T>(a.block(i, i + 1, rows, rest), c);
        if (j > 0) {
          z -= times<T>(y.block(i + 1, 0, rest, j), transposed_times<T>(u.block(i, k, rows, j), c));
          z -= times<T>(v.block(i + 1, k, rest, j), transposed_times<T>(x.block(i, 0, rows, j), c));
        }
        y.col(j).tail(rest) = below.tau * z;
        Column<T> r = a.row(i).tail(rest).transpose();
        r -= times<T>(y.block(i + 1, 0, rest, j + 1), u.row(i).segment(k, j + 1).transpose());
        if (j > 0) r -= times<T>(v.block(i + 1, k, rest, j), x.row(i).head(j).transpose());
        const Reflection<T> beside = reflect<T>(r);
        e(i) = beside.beta, tau_v(i) = beside.tau;
        v.col(i).tail(rest) = r;
        Column<T> w = times<T>(a.block(i + 1, i + 1, rows - 1, rest), r);
        w -= times<T>(u.block(i + 1, k, rows - 1, j + 1), transposed_times<T>(y.block(i + 1, 0, rest, j + 1), r));
        if (j > 0) w -= times<T>(x.block(i + 1, 0, rows - 1, j), transposed_times<T>(v.block(i + 1, k, rest, j), r));
        x.col(j).tail(rows - 1) = beside.tau * w;
      }
      const int64_t next = k + width;
      if (next == n) break;
      const Dense<T> yt = y.bottomRows(n - next).transpose(), vt = v.block(next, k, n - next, width).transpose();
      subtract<T>(a.bottomRightCorner(m - next, n - next), u.block(next, k, m - next, width), yt);
      subtract<T>(a.bottomRightCorner(m - next, n - next), x.bottomRows(m - next), vt);
    }
  }
};

/// Returns the upper triangular matrix t for which 1 - v t v^T is the product of the reflections 1 - tau[j] x x^T,
/// where x is column j of v.
template <class T> Dense<T> triangle_of(const Dense<T>& v, const Dense<T>& vt, const Column<T>& tau) {
  const int64_t width = v.cols();
  Dense<T> t = Dense<T>::Zero(width, width), gram = Dense<T>::Zero(width, width);
  subtract<T>(gram, vt, v);
  for (int64_t j = 0; j < width; ++j) {
    t(j, j) = tau(j);
    if (j > 0) t.col(j).head(j) = tau(j) * times<T>(t.topLeftCorner(j, j), gram.col(j).head(j));
  }
  return t;
}

/// c -= v t v^T c.
template <class T> void turn(Part<T> c, const Dense<T>& v, const Dense<T>& vt, const Dense<T>& t) {
  Dense<T> low = Dense<T>::Zero(v.cols(), c.cols()), scaled = low;
  subtract<T>(low, vt, c);
  subtract<T>(scaled, t, low);  // t v^T c
  subtract<T>(c, v, scaled);
}

/// Replaces c by Q c, where Q is the product of the reflections. is_identity: true if c is the identity at first.
template <class T> void multiply_by(const Dense<T>& reflections, const Column<T>& tau, bool is_identity, Dense<T>& c) {
  const int64_t m = reflections.rows(), n = reflections.cols();
  for (int64_t k = (n - 1) / panel * panel; k >= 0; k -= panel) {
    const int64_t width = std::min(panel, n - k), rows = m - k;
    const Dense<T> v = reflections.block(k, k, rows, width), vt = v.transpose();
    turn<T>(c.bottomRightCorner(rows, is_identity ? c.cols() - k : c.cols()), v, vt,
            triangle_of<T>(v, vt, tau.segment(k, width)));
  }
}
/// The first `columns` columns of the product of the reflections.
template <class T> Dense<T> product_of(const Dense<T>& reflections, const Column<T>& tau, int64_t columns) {
  Dense<T> q = Dense<T>::Identity(reflections.rows(), columns);
  multiply_by<T>(reflections, tau, true, q);
  return q;
}

/// The decomposition a = q r. Replaces a by r; q is the product of the reflections.
template <class T> struct Triangular {
  Dense<T> v;
  Column<T> tau;

  /// Decomposes a and replaces it by r.
  explicit Triangular(Dense<T>& a) {
    const int64_t m = a.rows(), n = a.cols(), count = std::min(m, n);
    v.setZero(m, count), tau.setZero(count);
    for (int64_t k = 0; k < count; k += panel) {
      const int64_t width = std::min(panel, count - k);
      for (int64_t i = k; i < k + width; ++i) {
        Column<T> c = a.col(i).tail(m - i);
        const Reflection<T> made = reflect<T>(c);
        a.col(i).tail(m - i).setZero();
        a(i, i) = made.beta, tau(i) = made.tau;
        v.col(i).tail(m - i) = c;
        const int64_t rest = k + width - i - 1;
        if (rest == 0) continue;
        Column<T> z = transposed_times<T>(a.block(i, i + 1, m - i, rest), c);
        z *= made.tau;
        subtract<T>(a.block(i, i + 1, m - i, rest), Dense<T>(c), Dense<T>(z.transpose()));
      }
      if (k + width == n) break;
      const Dense<T> part = v.block(k, k, m - k, width), part_t = part.transpose();
      turn<T>(a.bottomRightCorner(m - k, n - k - width), part, part_t,
              triangle_of<T>(part, part_t, tau.segment(k, width)).transpose());
    }
  }
};

/// The product of reflections that act from the second row on, as a square matrix.
template <class T> Dense<T> product_below(const Dense<T>& reflections, const Column<T>& tau) {
  const int64_t n = reflections.cols();
  Dense<T> q = Dense<T>::Identity(n, n);
  if (n > 1)
    q.bottomRightCorner(n - 1, n - 1) =
        product_of<T>(reflections.bottomLeftCorner(n - 1, n - 1), tau.head(n - 1), n - 1);
  return q;
}

/// The decomposition a = q T q^T of a symmetric matrix, with T tridiagonal (as LAPACK's latrd). Reads both triangles.
template <class T> struct Tridiagonal {
  Column<T> d, e, tau;
  Dense<T> v;  // reflections, one per column

  /// Decomposes a, which is overwritten.
  explicit Tridiagonal(Dense<T>& a) {
    const int64_t n = a.rows();
    d.resize(n), e.setZero(n), tau.setZero(n), v.setZero(n, n);
    Dense<T> w;  // within a panel the matrix is a - v w^T - w v^T
    for (int64_t k = 0; k < n; k += panel) {
      const int64_t width = std::min(panel, n - k);
      w.setZero(n, width);
      for (int64_t j = 0; j < width; ++j) {
        const int64_t i = k + j, rest = n - i - 1;
        Column<T> c = a.col(i).tail(rest + 1);
        if (j > 0) {
          c -= times<T>(v.block(i, k, rest + 1, j), w.row(i).head(j).transpose());
          c -= times<T>(w.block(i, 0, rest + 1, j), v.row(i).segment(k, j).transpose());
        }
        d(i) = c(0);
        if (rest == 0) break;
        Column<T> x = c.tail(rest);
        const Reflection<T> made = reflect<T>(x);
        e(i) = made.beta, tau(i) = made.tau;
        v.col(i).tail(rest) = x;
        Column<T> y = times<T>(a.block(i + 1, i + 1, rest, rest), x);
        if (j > 0) {
          y -= times<T>(v.block(i + 1, k, rest, j), transposed_times<T>(w.block(i + 1, 0, rest, j), x));
          y -= times<T>(w.block(i + 1, 0, rest, j), transposed_times<T>(v.block(i + 1, k, rest, j), x));
        }
        y *= made.tau;
        y -= T(0.5) * made.tau * y.dot(x) * x;
        w.col(j).tail(rest) = y;
      }
      const int64_t next = k + width;
      if (next == n) break;
      const Dense<T> left = v.block(next, k, n - next, width), right = w.bottomRows(n - next);
      subtract<T>(a.bottomRightCorner(n - next, n - next), left, Dense<T>(right.transpose()));
      subtract<T>(a.bottomRightCorner(n - next, n - next), right, Dense<T>(left.transpose()));
    }
  }
};

/// The eigenvalues of a symmetric matrix, which is overwritten, and its eigenvectors if wanted. Returns false if the
/// iteration did not converge.
template <class T> bool decompose_symmetric(Dense<T>& a, bool vectors, Column<T>& values, Dense<T>& q) {
  const T scale = bring_to_one<T>(a);
  const Tridiagonal<T> made(a);
  const int64_t n = a.cols();
  std::vector<double> d(made.d.data(), made.d.data() + n), e(made.e.data(), made.e.data() + n - 1);
  Columns<T> turned;
  if (vectors) {
    q = product_below<T>(made.v, made.tau);
    turned = {q.data(), n};
  }
  if (!tridiagonal_eigh(d, e, turned)) return false;
  values.resize(n);
  for (int64_t i = 0; i < n; ++i) values(i) = T(d[size_t(i)]) * scale;
  return true;
}

/// Singular values s of a and, with `vectors`, u and v with a = u diag(s) v^T (full: u is square). Overwrites a.
/// Returns false if the iteration did not converge.
template <class T> bool decompose(Dense<T>& a, bool vectors, bool full, Column<T>& s, Dense<T>& u, Dense<T>& v) {
  const T scale = bring_to_one<T>(a);
  const Bidiagonal<T> made(a);
  const int64_t n = a.cols();
  if (vectors) u = product_of<T>(made.u, made.tau_u, full ? a.rows() : n);
  if (vectors) v = product_below<T>(made.v, made.tau_v);
  std::vector<double> d(made.d.data(), made.d.data() + n), e(made.e.data(), made.e.data() + n - 1);
  Columns<T> left, right;
  if (vectors) left = {u.data(), u.rows()}, right = {v.data(), v.rows()};
  if (!bidiagonal_svd(d, e, left, right)) return false;
  s.resize(n);
  for (int64_t i = 0; i < n; ++i) s(i) = T(d[size_t(i)]) * scale;
  return true;
}

}  // namespace lockstep::on_cpu
