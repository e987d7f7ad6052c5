// The one file that compiles Eigen's decompositions.
#define EIGEN_DONT_PARALLELIZE  // a matrix is one thread's, see linalg.h
#define EIGEN_NO_DEBUG
#include "tensor/cpu/linalg.h"

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <Eigen/LU>
#include <cmath>
#include <limits>
#include <optional>

#include "tensor/cpu/bidiagonal.h"
#include "tensor/cpu/parallel.h"

namespace lockstep::on_cpu {
namespace {

template <class T> using Dense = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
template <class T> using Rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T> using Column = Eigen::Matrix<T, Eigen::Dynamic, 1>;

/// Matrix i of a batch, or row i of (batch, n) as a column.
template <class T> auto entry(const Tensor& x, int64_t i) {
  const int64_t rows = x.size(1), columns = x.dim() == 3 ? x.size(2) : 1;
  T* const data = rows * columns > 0 ? x.data<T>() + i * rows * columns : nullptr;
  return Eigen::Map<Rows<T>>(data, rows, columns);
}

/// fn<T>(i) for all entries of a batch of matrices like a's.
template <class Fn> void each_entry(const Tensor& a, const char* op, Fn fn) {
  const double work = double(a.size(1)) * double(a.size(2)) * double(std::min(a.size(1), a.size(2)));
  const int64_t entries = int64_t(20000 / std::max(work, 1.0));  // for which a second thread pays
  dispatch<float, double>(a.dtype(), op, [&]<class T> {
    parallel_for(a.size(0), std::max<int64_t>(1, entries), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) fn.template operator()<T>(i);
    });
  });
}

template <class T> int64_t first_zero(const Eigen::PartialPivLU<Dense<T>>& lu) {
  for (int64_t k = 0; k < lu.matrixLU().rows(); ++k)
    if (lu.matrixLU()(k, k) == T(0)) return k + 1;
  return 0;
}

/// Householder's method when there are many more rows than columns, so that the rest is of a small square.
template <class T> bool is_tall(const Dense<T>& a) { return a.rows() > 2 * a.cols() && a.cols() > 16; }

// --- singular values: to a bidiagonal matrix (as LAPACK's labrd, by panels), and from there in bidiagonal.cpp ---

template <class T> using Part = Eigen::Ref<Dense<T>, 0, Eigen::OuterStride<>>;
template <class T> using Reading = Eigen::Ref<const Dense<T>, 0, Eigen::OuterStride<>>;

// A few products that everything here is made of, so that the compiler sees each once.
template <class T> Column<T> times(const Reading<T>& a, const Column<T>& x) { return a * x; }
template <class T> Column<T> transposed_times(const Reading<T>& a, const Column<T>& x) { return a.transpose() * x; }
template <class T> Dense<T> product(const Reading<T>& a, const Reading<T>& b) { return a * b; }
template <class T> void subtract(Part<T> c, const Reading<T>& a, const Reading<T>& b) { c.noalias() -= a * b; }

/// Householder's reflection 1 - tau x x^T, x[0] = 1, that turns the vector to (beta, 0, ...), with LAPACK's sign.
template <class T> struct Reflection { T beta, tau; };
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

constexpr int64_t panel = 32;

template <class T> struct Bidiagonal {
  Column<T> d, e, tau_u, tau_v;
  Dense<T> u, v;  // reflections, as columns

  /// Of a, at least as many rows as columns; it is overwritten.
  explicit Bidiagonal(Dense<T>& a) {
    const int64_t m = a.rows(), n = a.cols();
    d.resize(n), e.setZero(n), tau_u.setZero(n), tau_v.setZero(n);
    u.setZero(m, n), v.setZero(n, n);
    Dense<T> x, y;  // in a panel the matrix is a - u y^T - x v^T
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

/// t with 1 - v t v^T for the product of a panel's reflections; gram is -v^T v.
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

/// c -= v t v^T c
template <class T> void turn(Part<T> c, const Dense<T>& v, const Dense<T>& vt, const Dense<T>& t) {
  Dense<T> low = Dense<T>::Zero(v.cols(), c.cols()), scaled = low;
  subtract<T>(low, vt, c);
  subtract<T>(scaled, t, low);  // t v^T c
  subtract<T>(c, v, scaled);
}

/// The product of reflections times c, panel by panel; is_identity: c is one, at first.
template <class T> void multiply_by(const Dense<T>& reflections, const Column<T>& tau, bool is_identity, Dense<T>& c) {
  const int64_t m = reflections.rows(), n = reflections.cols();
  for (int64_t k = (n - 1) / panel * panel; k >= 0; k -= panel) {
    const int64_t width = std::min(panel, n - k), rows = m - k;
    const Dense<T> v = reflections.block(k, k, rows, width), vt = v.transpose();
    turn<T>(c.bottomRightCorner(rows, is_identity ? c.cols() - k : c.cols()), v, vt,
            triangle_of<T>(v, vt, tau.segment(k, width)));
  }
}
template <class T> Dense<T> product_of(const Dense<T>& reflections, const Column<T>& tau, int64_t columns) {
  Dense<T> q = Dense<T>::Identity(reflections.rows(), columns);
  multiply_by<T>(reflections, tau, true, q);
  return q;
}

/// a becomes its triangle r: the product of the reflections times r is a.
template <class T> struct Triangular {
  Dense<T> v;
  Column<T> tau;

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

/// u diag(s) v^T of a, which is overwritten; without vectors u and v stay empty. False: it did not converge.
template <class T> bool decompose(Dense<T>& a, bool vectors, bool full, Column<T>& s, Dense<T>& u, Dense<T>& v) {
  const T scale = a.cwiseAbs().maxCoeff();
  if (scale > T(0)) a /= scale;
  const Bidiagonal<T> made(a);
  const int64_t n = a.cols();
  if (vectors) u = product_of<T>(made.u, made.tau_u, full ? a.rows() : n);
  if (vectors) {  // the first reflection of v is of its second row on
    v = Dense<T>::Identity(n, n);
    if (n > 1)
      v.bottomRightCorner(n - 1, n - 1) =
          product_of<T>(made.v.bottomLeftCorner(n - 1, n - 1), made.tau_v.head(n - 1), n - 1);
  }
  std::vector<double> d(made.d.data(), made.d.data() + n), e(made.e.data(), made.e.data() + n - 1);
  Columns<T> left, right;
  if (vectors) left = {u.data(), u.rows()}, right = {v.data(), v.rows()};
  if (!bidiagonal_svd(d, e, left, right)) return false;
  s.resize(n);
  for (int64_t i = 0; i < n; ++i) s(i) = T(d[size_t(i)]) * scale;
  return true;
}

}  // namespace

void lu_solve(const Tensor& a, const Tensor& b, Tensor& x, std::vector<int64_t>& bad) {
  each_entry(a, "solve", [&]<class T>(int64_t i) {
    const Eigen::PartialPivLU<Dense<T>> lu(entry<T>(a, i));
    bad[size_t(i)] = first_zero<T>(lu);
    if (x.size(2) > 0) entry<T>(x, i) = lu.solve(Dense<T>(entry<T>(b, i)));
  });
}

void lu_determinant(const Tensor& a, Tensor& det, Tensor& sign, Tensor& log_abs) {
  each_entry(a, "det", [&]<class T>(int64_t i) {
    const Eigen::PartialPivLU<Dense<T>> lu(entry<T>(a, i));
    T product = T(lu.permutationP().determinant()), signs = product, sum = 0;
    for (int64_t k = 0; k < a.size(1); ++k) {
      const T pivot = lu.matrixLU()(k, k);
      product *= pivot;
      signs *= pivot > T(0) ? T(1) : pivot < T(0) ? T(-1) : pivot;
      sum += std::log(std::abs(pivot));
    }
    det.data<T>()[i] = product, sign.data<T>()[i] = signs, log_abs.data<T>()[i] = sum;
  });
}

void cholesky(const Tensor& a, Tensor& out, std::vector<int64_t>& bad) {
  each_entry(a, "cholesky", [&]<class T>(int64_t i) {
    Dense<T> l = entry<T>(a, i);
    const int64_t failed = Eigen::internal::llt_inplace<T, Eigen::Lower>::blocked(l);  // -1, or which column
    bad[size_t(i)] = failed + 1;
    for (int64_t k = 0; failed < 0 && k < l.rows(); ++k)
      if (!(l(k, k) > T(0))) bad[size_t(i)] = k + 1;  // NaN
    entry<T>(out, i) = l.template triangularView<Eigen::Lower>();
  });
}

void qr(const Tensor& a, Tensor& q, Tensor& r) {
  each_entry(a, "qr", [&]<class T>(int64_t i) {
    Dense<T> x = entry<T>(a, i);
    const Triangular<T> made(x);
    entry<T>(r, i) = x.topRows(r.size(1));
    if (q.defined()) entry<T>(q, i) = product_of<T>(made.v, made.tau, q.size(2));
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
    std::optional<Triangular<T>> first;
    if (is_tall<T>(x) && !full) {
      first.emplace(x);
      x.conservativeResize(n, n);
    }
    Column<T> values;
    Dense<T> left, right;
    bad[size_t(i)] = !decompose<T>(x, vectors, full, values, left, right);
    if (bad[size_t(i)]) return;
    entry<T>(s, i) = values;
    if (!vectors) return;
    if (first) {
      Dense<T> tall = Dense<T>::Zero(first->v.rows(), n);
      tall.topRows(n) = left;
      multiply_by<T>(first->v, first->tau, false, tall);
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

void eigh(const Tensor& a, Tensor& values, Tensor& vectors, std::vector<int64_t>& bad) {
  each_entry(a, "eigh", [&]<class T>(int64_t i) {
    const Dense<T> x = entry<T>(a, i);
    bad[size_t(i)] = !Dense<T>(x.template triangularView<Eigen::Lower>()).allFinite();
    if (bad[size_t(i)]) return;
    const Eigen::SelfAdjointEigenSolver<Dense<T>> made(
        x, vectors.defined() ? Eigen::ComputeEigenvectors : Eigen::EigenvaluesOnly);
    bad[size_t(i)] = made.info() != Eigen::Success;
    if (bad[size_t(i)]) return;
    entry<T>(values, i) = made.eigenvalues();
    if (vectors.defined()) entry<T>(vectors, i) = made.eigenvectors();
  });
}

void solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool unit, Tensor& x) {
  each_entry(a, "solve_triangular", [&]<class T>(int64_t i) {
    // An upper triangle is a lower one, both ways from the end: one solver to compile.
    Dense<T> l = upper ? Dense<T>(entry<T>(a, i).reverse()) : Dense<T>(entry<T>(a, i));
    Dense<T> y = upper ? Dense<T>(entry<T>(b, i).colwise().reverse()) : Dense<T>(entry<T>(b, i));
    if (unit) l.diagonal().setOnes();
    l.template triangularView<Eigen::Lower>().solveInPlace(y);
    if (upper) entry<T>(x, i) = y.colwise().reverse();
    else entry<T>(x, i) = y;
  });
}

void matrix_exp(const Tensor& a, Tensor& out) {
  each_entry(a, "matrix_exp", [&]<class T>(int64_t i) {
    constexpr double largest = 5.371920351148152;  // 1-norm up to which the approximant is good to the last bit of f64
    Dense<T> x = entry<T>(a, i);
    const double norm = x.size() > 0 ? double(x.cwiseAbs().colwise().sum().maxCoeff()) : 0;
    if (!std::isfinite(norm)) {
      entry<T>(out, i).setConstant(std::numeric_limits<T>::quiet_NaN());
      return;
    }
    const int squarings = norm > largest ? int(std::ceil(std::log2(norm / largest))) : 0;
    x *= T(std::ldexp(1.0, -squarings));
    const auto coefficient = [](int k) {  // of x^k: (26 - k)! 13! / (26! k! (13 - k)!), from 1 on
      double c = 1;
      for (int j = 1; j <= k; ++j) c *= double(14 - j) / double(j * (27 - j));
      return T(c);
    };
    const Dense<T> x2 = product<T>(x, x), x4 = product<T>(x2, x2), x6 = product<T>(x4, x2);
    const Dense<T> one = Dense<T>::Identity(x.rows(), x.cols());
    const auto polynomial = [&](int first) {  // every second coefficient: odd or even powers
      const Dense<T>* const powers[] = {&one, &x2, &x4, &x6};
      Dense<T> low = Dense<T>::Zero(x.rows(), x.cols()), high = low;
      for (int k = 0; k < 3; ++k) low += coefficient(first + 2 * k) * *powers[k];
      for (int k = 0; k < 4; ++k) high += coefficient(first + 6 + 2 * k) * *powers[k];
      low += product<T>(x6, high);
      return low;
    };
    const Dense<T> odd = product<T>(x, polynomial(1)), even = polynomial(0);
    Dense<T> e = Eigen::PartialPivLU<Dense<T>>(even - odd).solve(Dense<T>(even + odd));
    for (int k = 0; k < squarings; ++k) e = product<T>(e, e);
    entry<T>(out, i) = e;
  });
}

}  // namespace lockstep::on_cpu
