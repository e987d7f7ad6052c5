#pragma once
// Linear maps in 8-bit floats with delayed scaling (nn/fp8.h, docs/mixed-precision.md): x and w in e4m3 forward, the
// gradient in e5m2 backward; all three products are summed in f32.
#include <array>
#include <functional>

#include "autograd/variable.h"
#include "tensor/fp8.h"

namespace lockstep {

inline constexpr int64_t fp8_multiple = 16;  ///< sizes must be multiples of 16, as cuBLASLt requires

/// The three tensors that a linear map casts to fp8, each with its own scale.
enum class Fp8Role : uint8_t { input, weight, gradient };

/// The fp8 format and the scale of each of the three tensors of one linear layer.
struct Fp8Scales {
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
};

/// While an Fp8Scope lives, linear() of variables in this thread runs linear_fp8(), unless for_product() gives null.
class Fp8Scope {
 public:
  /// A scope with these scales. Null turns fp8 off inside an outer scope.
  explicit Fp8Scope(const Fp8Scales* scales) : previous_(current_) { current_ = scales; }
  ~Fp8Scope() { current_ = previous_; }
  Fp8Scope(const Fp8Scope&) = delete;
  static const Fp8Scales* current() { return current_; }  ///< Scales of the innermost scope, or null.
  /// The scales of the innermost scope, or null if x w^T must not run in fp8. It may if x is f16 or bf16 or Autocast is
  /// on, and if the number of rows of x and both sizes of w are multiples of fp8_multiple.
  static const Fp8Scales* for_product(const Variable& x, const Variable& w);

 private:
  inline static thread_local const Fp8Scales* current_ = nullptr;
  const Fp8Scales* previous_;
};

/// The communication in a product that tensor parallelism spreads over several ranks.
struct Fp8Ranks {
  /// The whole input, gathered from all ranks, if x is only this rank's part of it; else undefined.
  Tensor whole;
  /// Starts to sum `mine`, this rank's gradient of x, over the ranks. Returns a function that waits for the sum and
  /// returns it. Backward computes the gradient of w in the meantime. Empty: the gradient of x is not summed.
  std::function<std::function<Tensor()>(const Tensor& mine)> sum;
};

/// activation(x w^T + bias) for x (..., in) and w (out, in). The dtypes of x and w may differ; the result has x's
/// dtype, or Autocast's dtype while it is on. Backward treats casts as the identity: it gives the gradients of the
/// product of the cast tensors. w's gradient has w's dtype. No second derivative.
Variable linear_fp8(const Variable& x, const Variable& w, const Variable& bias, Activation activation,
                    const Fp8Scales& scales, const Fp8Ranks& ranks = {});

}  // namespace lockstep
