#pragma once
// Singular values of a bidiagonal matrix, and eigenvalues of a tridiagonal one, by implicit QR. Internal to the tensor
// library.
#include <cstdint>
#include <vector>

namespace lockstep::on_cpu {

/// Columns of `rows` numbers, one after the other; data may be null.
template <class T> struct Columns {
  T* data = nullptr;
  int64_t rows = 0;
};

/// Diagonal d and, above it, e (d.size() - 1 numbers), at most about 1, become singular values from the largest and
/// zeros. u and v, of d.size() columns at least, are turned along: u B v^T stays. False: it did not converge.
template <class T> bool bidiagonal_svd(std::vector<double>& d, std::vector<double>& e, Columns<T> u, Columns<T> v);

/// The same of a symmetric matrix with diagonal d and e beside it: d becomes its eigenvalues from the smallest, e
/// zeros. q T q^T stays.
template <class T> bool tridiagonal_eigh(std::vector<double>& d, std::vector<double>& e, Columns<T> q);

}  // namespace lockstep::on_cpu
