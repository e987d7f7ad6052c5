// The kernels on the CPU: the only file that compiles Eigen's decompositions. See kernels.h.
#define EIGEN_DONT_PARALLELIZE  // one thread per matrix, see kernels.h
#define EIGEN_NO_DEBUG
#include "extensions/linear_algebra/kernels.h"

#include <Eigen/Cholesky>
#include <Eigen/LU>
#include <cmath>
#include <limits>
#include <optional>

#include "extensions/linear_algebra/cpu/reflections.h"
#include "tensor/cpu/parallel.h"

namespace lockstep::on_cpu {
namespace {

template <class T> using Rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A view of matrix i of a batch. If x has the shape (batch, n), a view of its row i as a column vector.
template <class T> auto entry(const Tensor& x, int64_t i) {
  const int64_t rows = x.size(1), columns = x.dim() == 3 ? x.size(2) : 1;
  T* const data = rows * columns > 0 ? x.data<T>() + i * rows * columns : nullptr;
  return Eigen::Map<Rows<T>>(data, rows, columns);
}

/// Calls fn<T>(i) for the number i of every matrix in the batch a.
template <class Fn> void each_entry(const Tensor& a, const char* op, Fn fn) {
  const double work = double(a.size(1)) * double(a.size(2)) * double(std::min(a.size(1), a.size(2)));
  const int64_t entries = int64_t(20000 / std::max(work, 1.0));  // matrices that justify a thread
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

/// True if there are many more rows than columns: then a QR decomposition first reduces the matrix to a small square.
template <class T> bool is_tall(const Dense<T>& a) { return a.rows() > 2 * a.cols() && a.cols() > 16; }

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
    const int64_t failed = Eigen::internal::llt_inplace<T, Eigen::Lower>::blocked(l);  // -1, or the column that failed
    bad[size_t(i)] = failed + 1;
    for (int64_t k = 0; bad[size_t(i)] == 0 && k < l.rows(); ++k)
      if (!(l(k, k) > T(0))) bad[size_t(i)] = k + 1;  // true for NaN, too
    entry<T>(out, i) = l.template triangularView<Eigen::Lower>();
  });
}

void qr(const Tensor& a, Tensor& q, Tensor& r) {
  each_entry(a, "qr", [&]<class T>(int64_t i) {
    Dense<T> x = entry<T>(a, i);
    const T scale = bring_to_one<T>(x);
    const Triangular<T> made(x);
    entry<T>(r, i) = x.topRows(r.size(1)) * scale;
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
    const T scale = bring_to_one<T>(x);
    if (is_tall<T>(x) && !full) {
      first.emplace(x);
      x.conservativeResize(n, n);
    }
    Column<T> values;
    Dense<T> left, right;
    bad[size_t(i)] = !decompose<T>(x, vectors, full, values, left, right);
    if (bad[size_t(i)]) return;
    entry<T>(s, i) = values * scale;
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
    Dense<T> x = entry<T>(a, i);
    for (int64_t c = 1; c < x.cols(); ++c) x.col(c).head(c) = x.row(c).head(c).transpose();
    bad[size_t(i)] = !x.allFinite();
    if (bad[size_t(i)]) return;
    Column<T> found;
    Dense<T> q;
    bad[size_t(i)] = !decompose_symmetric<T>(x, vectors.defined(), found, q);
    if (bad[size_t(i)]) return;
    entry<T>(values, i) = found;
    if (vectors.defined()) entry<T>(vectors, i) = q;
  });
}

void solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool unit, Tensor& x) {
  each_entry(a, "solve_triangular", [&]<class T>(int64_t i) {
    // Reversing the rows and columns of an upper triangle makes it a lower triangle, so only one solver is needed.
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
    // largest 1-norm of a matrix for which the Padé approximant is accurate to the last bit of f64
    constexpr double largest = 5.371920351148152;
    Dense<T> x = entry<T>(a, i);
    const double norm = x.size() > 0 ? double(x.cwiseAbs().colwise().sum().maxCoeff()) : 0;
    if (!std::isfinite(norm)) {
      entry<T>(out, i).setConstant(std::numeric_limits<T>::quiet_NaN());
      return;
    }
    const int squarings = norm > largest ? int(std::ceil(std::log2(norm / largest))) : 0;
    x *= T(std::ldexp(1.0, -squarings));
    const auto coefficient = [](int k) {  // of x^k: (26 - k)! 13! / (26! k! (13 - k)!); it is 1 for k = 0
      double c = 1;
      for (int j = 1; j <= k; ++j) c *= double(14 - j) / double(j * (27 - j));
      return T(c);
    };
    const Dense<T> x2 = product<T>(x, x), x4 = product<T>(x2, x2), x6 = product<T>(x4, x2);
    const Dense<T> one = Dense<T>::Identity(x.rows(), x.cols());
    const auto polynomial = [&](int first) {  // over every second coefficient: odd or even powers
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
