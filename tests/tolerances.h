#pragma once
// How far a device's results may be from the CPU's, or from exact ones: one row for each kind of result, with its
// reason. What was seen is of one H200 (CUDA 13.0); tests/cudasim/ errs as much where it computes in a library's place.
//
//   |got - expected| <= tolerance max(1, |expected|), unless the reason says otherwise
#include <cstddef>
#include <iterator>

#include "tensor/dtype.h"

namespace testing {
using namespace lockstep;

/// Kinds of results.
enum class Near {
  kernel,
  pointwise,
  derivative,
  cumulative,
  long_row,
  large_mean,
  loss,
  batch_norm,
  image,
  attention,
  chain,
  step_norm,
  decomposition,
  eigenvectors,
  product,
  wide_product,
  product_gelu,
  product_tf32,
  product_fp8,
  quantised
};

/// A row; 0: results of this dtype do not occur.
struct Tolerance {
  Near of;
  double f64, f32, f16, bf16;
  const char* reason;
};
inline constexpr Tolerance tolerances[] = {
    {Near::kernel, 1e-12, 2e-5, 2e-3, 1.6e-2, "two units in the last place of a 16-bit result; sums in another order"},
    {Near::pointwise, 1e-12, 4e-6, 2e-3, 1.6e-2, "the CPU's polynomials; only fused multiply-adds differ"},
    {Near::derivative, 4e-12, 1.6e-5, 8e-3, 6.4e-2, "several rounded steps of a pointwise derivative"},
    {Near::cumulative, 1e-12, 1e-6, 2e-3, 1.6e-2, "numbers around 1, added or multiplied in tiles"},
    {Near::long_row, 1e-12, 8e-5, 2e-3, 1.6e-2, "the error of an f32 sum grows with the length of the row"},
    {Near::large_mean, 0, 1e-4, 0, 0, "the mean is 10,000 times the deviation, so f32 leaves 10 bits for it"},
    {Near::loss, 1e-11, 5e-5, 5e-5, 5e-5, "logarithms of long sums of exponentials; losses have at least f32"},
    {Near::batch_norm, 4e-12, 8e-5, 8e-3, 6.4e-2, "three sums for each element of the gradient"},
    {Near::image, 3e-12, 6e-5, 6e-3, 4.8e-2, "convolutions sum over windows, channels and images in tiles"},
    {Near::attention, 3e-12, 6e-5, 6e-3, 4.8e-2,
     "two products with a softmax between them, rounded between in 16 bits"},
    {Near::chain, 0, 0, 1e-2, 1e-2, "f16 numbers up to 10 through several sums, as in tests of limits"},
    {Near::step_norm, 1e-7, 1e-7, 1e-7, 1e-7, "relative; squares are added in f64 in both places"},
    {Near::decomposition, 5e-10, 1e-2, 0, 0, "the matrix's condition multiplies the error of cuSOLVER's own order"},
    {Near::eigenvectors, 2e-13, 6e-5, 0, 0, "for each row: cuSOLVER's are less orthogonal than LAPACK's (3 of 12,386)"},
    {Near::product, 1e-13, 2e-6, 2e-3, 1.6e-2, "16-bit sums may be rounded before the bias or residual is added, too"},
    {Near::wide_product, 0, 1e-6, 0, 0, "16-bit operands: products are exact in f32, sums are not"},
    {Near::product_gelu, 1e-13, 1e-5, 2e-3, 1.6e-2, "cuBLASLt's tanh is an approximation; bf16 was off by 0.0116"},
    {Near::product_tf32, 0, 1e-2, 0, 0, "tf32 has 10 bits of mantissa"},
    {Near::product_fp8, 0, 2e-4, 2e-3, 1.6e-2, "of the largest element: Hopper adds 8-bit products in some 14 bits"},
    {Near::quantised, 0, 1e-3, 0, 0, "rows of 1,024 numbers in codes, with scales in f32"},
};

/// The tolerance for results of a dtype.
constexpr double tolerance(Near of, DType dtype) {
  const Tolerance& row = tolerances[size_t(of)];
  return dtype == f64 ? row.f64 : dtype == f16 ? row.f16 : dtype == bf16 ? row.bf16 : row.f32;
}
constexpr bool tolerances_are_in_order() {
  for (size_t i = 0; i < std::size(tolerances); ++i)
    if (tolerances[i].of != Near(i)) return false;
  return std::size(tolerances) == size_t(Near::quantised) + 1;
}
static_assert(tolerances_are_in_order());

}  // namespace testing
