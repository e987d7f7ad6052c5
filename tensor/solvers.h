#pragma once
// Who decomposes matrices: one struct of function pointers, filled for the CPU in linalg.cpp (by cpu/linalg.h, which
// says what each function does) and for CUDA in cuda/solvers.cpp. Internal; linalg.cpp checks and allocates.
//
// Tensors are on one device, (batch, rows, columns) and not empty, f32 or f64. Results are contiguous; what is read is
// so for the CPU, and has any strides for others. `bad` is on the host: a function that fills it has waited.
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

struct Solvers {
  void (*lu_solve)(const Tensor& a, const Tensor& b, Tensor& x, std::vector<int64_t>& bad);
  void (*lu_determinant)(const Tensor& a, Tensor& det, Tensor& sign, Tensor& log_abs);
  void (*cholesky)(const Tensor& a, Tensor& out, std::vector<int64_t>& bad);
  void (*qr)(const Tensor& a, Tensor& q, Tensor& r);
  void (*svd)(const Tensor& a, Tensor& u, Tensor& s, Tensor& vh, std::vector<int64_t>& bad);
  void (*eigh)(const Tensor& a, Tensor& values, Tensor& vectors, std::vector<int64_t>& bad);
  void (*solve_triangular)(const Tensor& a, const Tensor& b, bool upper, bool unit, Tensor& x);
};

}  // namespace lockstep
