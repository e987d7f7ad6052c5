#pragma once
// Checks and helpers of linalg:: for Tensor and Variable. Internal.
#include "autograd/autocast.h"
#include "extensions/linear_algebra/linalg.h"

namespace lockstep::linalg {

/// The shape without its last `count` dims.
inline Shape front_dims(const Shape& shape, int count = 1) { return Shape(shape.begin(), shape.end() - count); }

/// While an Exact<Value> exists, matrix products of Values are not rounded to 16 bits. Products of Tensors never are.
template <class Value> struct Exact {};
/// Turns autocast off.
template <> struct Exact<Variable> { Autocast off{bf16, false}; };

/// Error unless a is (..., m, n) in f32 or f64.
void check_matrices(const char* op, const Tensor& a);
/// Error unless a is (..., n, n) in f32 or f64.
void check_square(const char* op, const Tensor& a);
/// Error unless `order` is the order of a matrix norm.
void check_order(const char* op, double order);
/// Error if `info` (of inv_ex()) is not 0 for a matrix; the Error names the first such matrix.
void check_regular(const char* op, const Tensor& info);

/// Solves a x = b for matrices b.
Tensor solve_matrices(const Tensor& a, const Tensor& b);
Variable solve_matrices(const Variable& a, const Variable& b);
/// Solves a x = b for matrices b and a triangular a.
Tensor solve_triangles(const Tensor& a, const Tensor& b, bool upper, bool unit);
Variable solve_triangles(const Variable& a, const Variable& b, bool upper, bool unit);
/// For each singular value in s: 1 if it is above the tolerance of pinv(), else 0. `size` is max(m, n) of the matrices.
Tensor counting(const Tensor& s, std::optional<double> atol, std::optional<double> rtol, int64_t size);
/// Number of singular values above the tolerance of pinv() for each matrix, i64.
Tensor rank_of(const Tensor& s, std::optional<double> atol, std::optional<double> rtol, int64_t size);

}  // namespace lockstep::linalg
