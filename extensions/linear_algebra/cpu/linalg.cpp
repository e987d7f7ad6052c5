// The kernels on the CPU, except QR and SVD (qr_svd.cpp). See kernels.h.
#include "extensions/linear_algebra/cpu/entries.h"

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <Eigen/LU>
#include <cmath>
#include <limits>

namespace lockstep::on_cpu {
namespace {

/// A part of a matrix, read-only.
template <class T> using Reading = Eigen::Ref<const Dense<T>, 0, Eigen::OuterStride<>>;
/// a b. A function, so that the compiler compiles this product once.
template <class T> Dense<T> product(const Reading<T>& a, const Reading<T>& b) { return a * b; }

template <class T> int64_t first_zero(const Eigen::PartialPivLU<Dense<T>>& lu) {
  for (int64_t k = 0; k < lu.matrixLU().rows(); ++k)
    if (lu.matrixLU()(k, k) == T(0)) return k + 1;
  return 0;
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
    const int64_t failed = Eigen::internal::llt_inplace<T, Eigen::Lower>::blocked(l);  // -1, or the column that failed
    bad[size_t(i)] = failed + 1;
    for (int64_t k = 0; bad[size_t(i)] == 0 && k < l.rows(); ++k)
      if (!(l(k, k) > T(0))) bad[size_t(i)] = k + 1;  // true for NaN, too
    entry<T>(out, i) = l.template triangularView<Eigen::Lower>();
  });
}

void eigh(const Tensor& a, Tensor& values, Tensor& vectors, std::vector<int64_t>& bad) {
  each_entry(a, "eigh", [&]<class T>(int64_t i) {
    const Dense<T> x = entry<T>(a, i).template triangularView<Eigen::Lower>();
    bad[size_t(i)] = !x.allFinite();
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
