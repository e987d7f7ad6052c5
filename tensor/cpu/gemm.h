#pragma once
// Matrix product: the building block of matmul and of the plain convolution.
#include <cstdint>
#include <functional>

namespace lockstep::on_cpu {

/// Element (i, j) lies at data[i * row + j * col]. Fast when one of the strides is 1.
template <class T> struct MatrixView {
  const T* data;
  int64_t row, col;

  MatrixView at(int64_t i, int64_t j) const { return {data + i * row + j * col, row, col}; }
};

/// Called with (i, j, rows, columns) for every piece of the result once it is complete, on the thread that made it.
using Finish = std::function<void(int64_t, int64_t, int64_t, int64_t)>;

/// c (m x n, rows ldc apart) = alpha * a (m x k) * b (k x n) + beta * c. beta 0 does not read c.
/// T is float (In: float, Half or BFloat16) or double (In: double). An element's bits depend on its row of a, its
/// column of b and k alone: k is cut into equal blocks of at most 2048 bytes of T; a block is summed in order, then
/// added to c. With `scratch`, gemm_scratch() numbers of T, it runs on the calling thread alone; else on get_threads()
/// threads.
template <class T, class In>
void gemm(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<In> a, MatrixView<In> b, T beta, T* c, int64_t ldc,
          const Finish& finish = {}, T* scratch = nullptr);
template <class T> int64_t gemm_scratch(int64_t m, int64_t n, int64_t k);

}  // namespace lockstep::on_cpu
