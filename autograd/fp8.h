#pragma once
// Linear maps in 8-bit floats with delayed scaling (nn/fp8.h, docs/mixed-precision.md): x and w in e4m3 forward, the
// gradient in e5m2 backward, all three products summed in f32.
#include <array>
#include <functional>

#include "autograd/variable.h"
#include "tensor/fp8.h"

namespace lockstep {

inline constexpr int64_t fp8_multiple = 16;  ///< sizes that can be in 8 bits: those that cuBLASLt multiplies

/// What is cast in a linear map, each with a scale of its own.
enum class Fp8Role : uint8_t { input, weight, gradient };

struct Fp8Scales {
  struct Of {
    Fp8Format format;
    Tensor scale, scale_inv;  ///< f32 of one element; not changed between a forward and its backward
    Tensor amax;              ///< the largest number that was cast, where it is noted; else undefined
  };
  std::array<Of, 3> of;
  bool notes = true;  ///< amax of what a forward casts; backwards always note
  const Of& operator[](Fp8Role role) const { return of[size_t(role)]; }
};

/// While it lives, linear() of variables is linear_fp8() in this thread, where sizes allow it. Null: it is not.
class Fp8Scope {
 public:
  explicit Fp8Scope(const Fp8Scales* scales) : previous_(current_) { current_ = scales; }
  ~Fp8Scope() { current_ = previous_; }
  Fp8Scope(const Fp8Scope&) = delete;
  static const Fp8Scales* current() { return current_; }
  /// The same, for a product that would be in 16 bits (x is, or is under Autocast) and whose sizes can be in 8: rows of
  /// x, inputs and outputs are multiples of 16.
  static const Fp8Scales* for_product(const Variable& x, const Variable& w);

 private:
  inline static thread_local const Fp8Scales* current_ = nullptr;
  const Fp8Scales* previous_;
};

/// Of a product over ranks: what they gathered in place of x, and the sum of x's gradient, begun here and waited for in
/// what is given back, while the weight's is computed.
struct Fp8Ranks {
  Tensor whole;
  std::function<std::function<Tensor()>(const Tensor& mine)> sum;
};

/// activation(x w^T + bias) for x (..., in) and w (out, in), which may have other dtypes; the result has x's, under
/// Autocast its. The casts count as the identity in backward: gradients are those of the product of what was cast, and
/// w's has w's dtype. No second derivative.
Variable linear_fp8(const Variable& x, const Variable& w, const Variable& bias, Activation activation,
                    const Fp8Scales& scales, const Fp8Ranks& ranks = {});

}  // namespace lockstep
