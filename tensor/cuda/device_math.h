#pragma once
// Elementary functions (exp, tanh, ...) for kernels. The width of a kernel's result decides which functions it uses.
//
//   16 bits     the special function unit: 2^x and 1 / x in one instruction each, with a relative error of 2^-22
//               (subnormals become 0). The functions here stay within 2^-16, where half a unit in the last place is
//               2^-12 in f16 and 2^-9 in bf16
//   f32, f64    the accurate functions of tensor/math.h and CUDA
#include "tensor/cuda/element.h"
#include "tensor/math.h"

namespace lockstep::on_cuda {

// Functions to about one unit in the last place.
/// e^x.
__device__ inline float exp_of(float x) { return ::expf(x); }
__device__ inline double exp_of(double x) { return ::exp(x); }
/// The natural logarithm.
__device__ inline float log_of(float x) { return ::logf(x); }
__device__ inline double log_of(double x) { return ::log(x); }
/// The square root.
__device__ inline float root_of(float x) { return ::sqrtf(x); }
__device__ inline double root_of(double x) { return ::sqrt(x); }

// Sums and products that the compiler must not fuse: kernels that compute the same value must round the same way.
/// a + b, rounded.
__device__ inline float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double plus(double a, double b) { return __dadd_rn(a, b); }
/// a b, rounded.
__device__ inline float times(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double times(double a, double b) { return __dmul_rn(a, b); }
/// a b + c, rounded once.
__device__ inline float fused(float a, float b, float c) { return ::fmaf(a, b, c); }
__device__ inline double fused(double a, double b, double c) { return ::fma(a, b, c); }

/// 2^x with a relative error of at most 2^-22.
__device__ inline float fast_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  // On the CPU (simt.h), the lowest bit is cleared, to be as inaccurate as the GPU's special function unit may be.
  return __uint_as_float(__float_as_uint(std::exp2(x < -126.f ? -INFINITY : x)) & ~1u);
#endif
}
/// 1 / x with a relative error of at most 2^-22. 0 if |x| > 2^126.
__device__ inline float fast_reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::fabs(x) > 0x1p126f ? std::copysign(0.f, x) : __uint_as_float(__float_as_uint(1.f / x) & ~1u);
#endif
}

/// log2(e) in f32. The kernels' e^x is 2^(log2_e x).
inline constexpr float log2_e = 1.44269504f;

/// Computes e^(v - base) for the elements v of a row. This version is for f32 and f64 and is accurate.
template <class T> class RowExp {
 public:
  using A = Compute<T>;  ///< the type that it computes in
  explicit __device__ RowExp(A base) : base_(base) {}
  __device__ A operator()(A v) const { return exp_of(v - base_); }
  /// The factor that turns e^(v - old), or a sum of such terms, into e^(v - base).
  __device__ A from(A old) const { return exp_of(old - base_); }
  /// The factor that corrects results of operator(), or their sum, for the rounding of `base`. None is needed here.
  __device__ A correction() const { return A(1); }

 private:
  A base_;
};

/// The version for 16 bits takes one fused multiply-add and one fast_exp2(): 2^(log2_e * v - scaled), where `scaled` is
/// the rounded log2_e * base. correction() undoes this rounding for a whole row. If |base| >= 2^30, log2_e is replaced
/// by 1: the next smaller 16-bit number is so far from base that e^(v - base) is 0 with either factor.
template <class T>
requires(is_half<T>) class RowExp<T> {
 public:
  explicit __device__ RowExp(float base)
      : base_(base), factor_(std::fabs(base) < 0x1p30f ? log2_e : 1.f), scaled_(times(factor_, base)) {}
  __device__ float operator()(float v) const { return fast_exp2(fused(v, factor_, -scaled_)); }
  __device__ float from(float old) const { return exp_of(old - base_); }
  __device__ float correction() const {
    const float lost = fused(-factor_, base_, scaled_);
    return std::fabs(lost) < 64 ? fast_exp2(lost) : 1.f;  // an infinite base loses nothing
  }

 private:
  float base_, factor_, scaled_;
};

/// A float whose functions are only as accurate as results of 16 bits need. The activations of tensor/functors.h take
/// it as their number type.
struct FastFloat {
  float value;

  FastFloat() = default;
  template <class N>
  requires std::is_arithmetic_v<N>
  explicit constexpr __device__ FastFloat(N x) : value(float(x)) {}

  friend __device__ FastFloat operator+(FastFloat a, FastFloat b) { return FastFloat(a.value + b.value); }
  friend __device__ FastFloat operator-(FastFloat a, FastFloat b) { return FastFloat(a.value - b.value); }
  friend __device__ FastFloat operator*(FastFloat a, FastFloat b) { return FastFloat(a.value * b.value); }
  /// Accurate if |b| is between 2^-126 and 2^126. For other b, the quotient is infinite or 0.
  friend __device__ FastFloat operator/(FastFloat a, FastFloat b) {
    return FastFloat(a.value * fast_reciprocal(b.value));
  }
  friend __device__ FastFloat operator-(FastFloat a) { return FastFloat(-a.value); }
  friend __device__ bool operator<(FastFloat a, FastFloat b) { return a.value < b.value; }
  friend __device__ bool operator>(FastFloat a, FastFloat b) { return a.value > b.value; }
};

/// e^x.
__device__ inline FastFloat exp(FastFloat x) { return FastFloat(fast_exp2(log2_e * x.value)); }
__device__ inline FastFloat exp_normal(FastFloat x) { return exp(x); }  ///< e^x
__device__ inline FastFloat exp_coarse(FastFloat x) { return exp(x); }  ///< e^x
/// e^x - 1, accurate near 0.
__device__ inline FastFloat expm1(FastFloat x) { return FastFloat(math::expm1(x.value)); }
/// 1 / (1 + e^-x).
__device__ inline FastFloat sigmoid(FastFloat x) { return FastFloat(1) / (FastFloat(1) + exp(-x)); }
/// Hyperbolic tangent. Near 0 its power series is used, because 1 - 2 / (e^2x + 1) would lose digits there.
__device__ inline FastFloat tanh(FastFloat x) {
  const float s = x.value * x.value, e = fast_exp2(2 * log2_e * x.value);
  const float near = x.value * math::polynomial(s, -5.39682540e-2f, 1.33333333e-1f, -3.33333333e-1f, 1.f);
  return FastFloat(s < 0.1f ? near : 1.f - 2.f * fast_reciprocal(e + 1.f));
}
/// The probability that a standard normal variable is below -|x|. It is t p(t) e^(-x^2/2) with t = 1 / (1 + 0.31 |x|)
/// and a polynomial p with fitted coefficients. Nothing cancels, so the relative error stays small for large |x|.
__device__ inline float fast_normal_tail(float x) {
  const float t = fast_reciprocal(1.f + 0.31f * std::fabs(x));
  const float p = math::polynomial(t, -7.39279042e-2f, 1.80446937e-1f, 1.57483339e-2f, 1.33427972e-1f, 1.20441706e-1f,
                                   1.23860663e-1f);
  return t * p * fast_exp2(-0.5f * log2_e * x * x);
}
/// The probability that a standard normal variable is below x.
__device__ inline FastFloat normal_cdf(FastFloat x) {
  const float tail = fast_normal_tail(x.value);
  return FastFloat(x.value < 0.f ? tail : 1.f - tail);
}

}  // namespace lockstep::on_cuda
