#pragma once
// Linear maps in 8-bit floats with delayed scaling (scaling.h, README.md): x and w in e4m3 forward, the gradient in
// e5m2 backward; all three products are summed in f32.
#include <array>

#include "autograd/variable.h"
#include "extensions/fp8/matrix.h"
#include "nn/attachment.h"

namespace lockstep {

inline constexpr int64_t fp8_multiple = 16;  ///< sizes must be multiples of 16, as cuBLASLt requires

/// The three tensors that a linear map casts to fp8, each with its own scale.
enum class Fp8Role : uint8_t { input, weight, gradient };

/// The fp8 format and the scale of each of the three tensors of one linear layer. As a layer's arithmetic
/// (nn/attachment.h), it makes the layer multiply in fp8.
struct Fp8Scales : nn::Arithmetic {
  /// Format and scale of one of the three tensors.
  struct Of {
    Fp8Format format;
    /// f32 tensors of one element; they must not change between a forward and its backward. scale_inv is 1 / scale.
    Tensor scale, scale_inv;
    Tensor amax;  ///< each cast raises amax to at least the largest |x| cast; undefined: not recorded
  };
  std::array<Of, 3> of;
  bool notes = true;  ///< true: the forward pass records amax, too; the backward pass always does
  const Of& operator[](Fp8Role role) const { return of[size_t(role)]; }  ///< Entry of a role.

  /// True if x is f16 or bf16 or Autocast is on, and the rows of x and both sizes of w are multiples of fp8_multiple.
  bool takes(const Variable& x, const Variable& weight) const override;
  /// Calls linear_fp8(), with `notes` set to product.training: only products in training record amax in forward.
  Variable linear(const nn::Product& product, const Ranks& ranks) override;
  nn::RowProduct in_rows(const nn::Product& product) override;
  int64_t row_multiple() const override { return fp8_multiple; }
};

/// activation(x w^T + bias) for x (..., in) and w (out, in). The dtypes of x and w may differ; the result has x's
/// dtype, or Autocast's dtype while it is on. Backward treats casts as the identity: it gives the gradients of the
/// product of the cast tensors. w's gradient has w's dtype. No second derivative.
Variable linear_fp8(const Variable& x, const Variable& w, const Variable& bias, Activation activation,
                    const Fp8Scales& scales, const nn::Arithmetic::Ranks& ranks = {});

}  // namespace lockstep
