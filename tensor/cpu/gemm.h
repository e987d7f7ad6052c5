#pragma once
// Matrix product: the core of matmul and of our own convolution.
#include <cstdint>
#include <functional>

namespace lockstep::on_cpu {

/// A view of a matrix: element (i, j) is data[i * row + j * col]. Fast if one of the strides is 1.
template <class T> struct MatrixView {
  const T* data;
  int64_t row, col;

  /// the submatrix that begins at (i, j)
  MatrixView at(int64_t i, int64_t j) const { return {data + i * row + j * col, row, col}; }
};

/// Called for every completed part of the result, on the thread that computed it: rows [i, i + rows) and columns [j, j
/// + columns). The part begins at `piece`, and its rows are `ld` apart.
template <class T>
using Finish = std::function<void(int64_t i, int64_t j, int64_t rows, int64_t columns, T* piece, int64_t ld)>;

/// c (m x n, rows ldc apart) = alpha * a (m x k) * b (k x n) + beta * c. With beta = 0, c is not read and may be null;
/// then only `finish` receives the result, in parts. T is float (In: float, Half or BFloat16) or double (In: double).
/// The bits of an element of c depend only on its row of `a`, its column of `b` and k. k is cut into equal blocks, each
/// of at most 2048 bytes of T. Each block is summed in order, then added to c. The processor's bf16 instructions add in
/// another order (gemm_pairs.h) and need a stride of 1 in a and in b. With `scratch` (gemm_scratch() numbers of T) the
/// product runs on the calling thread alone, else on get_threads() threads.
template <class T, class In>
void gemm(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<In> a, MatrixView<In> b, T beta, T* c, int64_t ldc,
          const Finish<T>& finish = {}, T* scratch = nullptr);
/// How many numbers of type T gemm() needs as `scratch`. with_c: true if c is not null.
template <class T, class In = T> int64_t gemm_scratch(int64_t m, int64_t n, int64_t k, bool with_c = true);

}  // namespace lockstep::on_cpu
