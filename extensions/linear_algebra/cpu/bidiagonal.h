#pragma once
// Singular values of a bidiagonal matrix by implicit QR. Internal.
#include <cstdint>
#include <vector>

namespace lockstep::on_cpu {

/// A matrix with `rows` rows whose columns are contiguous in memory. `data` is null if there is no matrix.
template <class T> struct Columns {
  T* data = nullptr;
  int64_t rows = 0;
};

/// B is the bidiagonal matrix with diagonal d and the d.size() - 1 numbers e above it; all are at most about 1.
/// Replaces d by the singular values, in descending order, and e by zeros. Rotates u and v, of at least d.size()
/// columns, so that u B v^T stays the same. Returns false if the iteration did not converge.
template <class T> bool bidiagonal_svd(std::vector<double>& d, std::vector<double>& e, Columns<T> u, Columns<T> v);

}  // namespace lockstep::on_cpu
