#pragma once
// Matrix product on the calling thread alone: the building block of matmul and of the plain convolution.
#include <cstdint>

namespace lockstep::on_cpu {

/// Element (i, j) lies at data[i * row + j * col]. Fast when one of the strides is 1.
template <class T>
struct MatrixView {
  const T* data;
  int64_t row, col;

  MatrixView at(int64_t i, int64_t j) const { return {data + i * row + j * col, row, col}; }
};

/// c (m x n, rows ldc apart) = alpha * a (m x k) * b (k x n) + beta * c, by one thread, in an order fixed by the shape.
/// beta 0 does not read c. T is float or double.
template <class T>
void gemm(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<T> a, MatrixView<T> b, T beta, T* c, int64_t ldc);

}  // namespace lockstep::on_cpu
