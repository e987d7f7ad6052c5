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

/// Called for every piece of the result once it is complete, on the thread that made it: rows [i, i + rows) of columns
/// [j, j + columns), which lie `ld` apart from `piece` on.
template <class T>
using Finish = std::function<void(int64_t i, int64_t j, int64_t rows, int64_t columns, T* piece, int64_t ld)>;

/// c (m x n, rows ldc apart) = alpha * a (m x k) * b (k x n) + beta * c. beta 0 does not read c; without c (null, beta
/// 0) the result exists in the pieces that `finish` gets. T is float (In: float, Half or BFloat16) or double (In:
/// double). An element's bits depend on its row of a, its column of b and k alone: k is cut into equal blocks of at
/// most 2048 bytes of T; a block is summed in order, then added to c. BFloat16 by the processor's instructions
/// (tensor/bf16_products.h) has an order of its own, as in gemm_pairs.h, and wants one stride of a and of b to be 1.
/// With `scratch`, gemm_scratch() numbers of T, it runs on the calling thread alone; else on get_threads() threads.
template <class T, class In>
void gemm(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<In> a, MatrixView<In> b, T beta, T* c, int64_t ldc,
          const Finish<T>& finish = {}, T* scratch = nullptr);
template <class T, class In = T> int64_t gemm_scratch(int64_t m, int64_t n, int64_t k, bool with_c = true);

}  // namespace lockstep::on_cpu
