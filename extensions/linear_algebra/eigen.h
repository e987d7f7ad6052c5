#pragma once
// Tensors as Eigen matrices and back, without a copy. Not part of lockstep.h, because it includes Eigen.
//
//   lockstep::eigen::map<float>(x).row(0) *= 2;
#include <Eigen/Core>
#include <utility>

#include "tensor/tensor.h"

namespace lockstep::eigen {

/// A row-major Eigen matrix.
template <class T> using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
/// A view of a tensor as an Eigen matrix with any strides.
template <class T> using Map = Eigen::Map<Matrix<T>, Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

/// The elements of a CPU tensor of type T in place, with any strides: a matrix (m, n); a vector (n) as one column; a
/// scalar as (1, 1). The map does not own the memory: keep the tensor alive. Autograd does not see writes through it;
/// call x.storage()->bump_version("eigen") after writing if x may be saved for backward.
template <class T> Map<T> map(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined() && x.dim() <= 2, "[eigen] expected a tensor of at most 2 dims, got ",
                 x.defined() ? str(x.shape()) : "none", "; use reshape() or select()");
  LOCKSTEP_CHECK(x.dtype() == dtype_of<T> && x.device().is_cpu(), "[eigen] expected ", dtype_of<T>, " on the CPU, got ",
                 x.dtype(), " on ", x.device(), "; convert with .to()");
  const bool is_matrix = x.dim() == 2;
  const int64_t rows = x.dim() == 0 ? 1 : x.size(0), columns = is_matrix ? x.size(1) : 1;
  const int64_t down = x.dim() == 0 ? 1 : x.strides()[0], across = is_matrix ? x.strides()[1] : 1;
  return Map<T>(x.numel() == 0 ? nullptr : x.data<T>(), rows, columns, {down, across});
}

/// A tensor that takes over this matrix and its memory without a copy: (m, n), or (n) for a vector. A column-major
/// matrix gives a tensor with column-major strides. To keep your matrix, pass a copy: map(Matrix(a)).
template <class T, int rows, int columns, int options>
requires(rows == Eigen::Dynamic || columns == Eigen::Dynamic) Tensor
    map(Eigen::Matrix<T, rows, columns, options>&& matrix) {
  using Kept = Eigen::Matrix<T, rows, columns, options>;
  auto* const kept = new Kept(std::move(matrix));
  const auto storage = Storage::adopt(kept->data(), kept->size() * int64_t(sizeof(T)), cpu, [kept] { delete kept; });
  const int64_t m = kept->rows(), n = kept->cols();
  if constexpr (rows == 1 || columns == 1) return Tensor(storage, 0, {m * n}, {1}, dtype_of<T>);
  else return Tensor(storage, 0, {m, n}, Kept::IsRowMajor ? Strides{n, 1} : Strides{1, m}, dtype_of<T>);
}

}  // namespace lockstep::eigen
