#pragma once
// The matrices of a batch as Eigen's matrices; one thread computes each. This file includes Eigen, so only the kernels
// on the CPU may include it.
#define EIGEN_DONT_PARALLELIZE  // one thread per matrix, see kernels.h
#include <Eigen/Core>
#include <algorithm>

#include "extensions/linear_algebra/kernels.h"
#include "tensor/cpu/parallel.h"

namespace lockstep::on_cpu {

template <class T> using Rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T> using Dense = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;  ///< a matrix
template <class T> using Column = Eigen::Matrix<T, Eigen::Dynamic, 1>;              ///< a column vector

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

}  // namespace lockstep::on_cpu
