#pragma once
// What linalg:: checks, for Tensor and Variable. Internal to tensor/ and autograd/.
#include "tensor/linalg.h"

namespace lockstep::linalg {

inline Shape front_dims(const Shape& shape, int count = 1) { return Shape(shape.begin(), shape.end() - count); }

/// Error unless a is (..., m, n) in f32 or f64; square: unless m is n.
void check_matrices(const char* op, const Tensor& a);
void check_square(const char* op, const Tensor& a);
/// Error that names the first matrix whose info is not 0.
void check_regular(const char* op, const Tensor& info);

/// solve() and solve_triangular() of matrices from the left.
Tensor solve_matrices(const Tensor& a, const Tensor& b);
Tensor solve_triangles(const Tensor& a, const Tensor& b, bool upper, bool unit);
/// Singular values that count, as 1 and 0 in s's dtype: pinv's rule with `size` for max(m, n).
Tensor counting(const Tensor& s, std::optional<double> atol, std::optional<double> rtol, int64_t size);
Tensor rank_of(const Tensor& s, std::optional<double> atol, std::optional<double> rtol, int64_t size);

}  // namespace lockstep::linalg
