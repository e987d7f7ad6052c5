#pragma once
// Functors of the pointwise operations (pointwise.def says what each computes): the value, and the derivative times the
// incoming gradient g. They generate the CPU and CUDA kernels, and `reads` tells autograd what to save. T is float,
// double, int64_t, int32_t, or uint8_t for bool. Derivatives at kinks follow PyTorch. Every function must return NaN
// for NaN: comparisons with NaN are false, so write each comparison so that its false branch returns x.
#include <type_traits>

#include "tensor/math.h"
#include "tensor/math_gamma.h"

namespace lockstep::functor {

/// The scalar parameters of an operation.
template <class T> struct Params { T p, q; };

/// The saved tensor that the derivative of a unary operation reads. zero: the derivative is 0 everywhere.
enum class Reads : uint8_t { none, input, output, zero };

/// The operands that a derivative of a binary operation reads, as bits.
inline constexpr int nothing = 0, reads_a = 1, reads_b = 2, both = 3;

/// Base of operations that cost more than moving their operands, so several threads pay off for smaller tensors too.
struct Costly {
  static constexpr bool costly = true;
};

// Derivatives use only functions that exist both for numbers and for symbols on the tape (autograd/symbol.h), so that
// they can be differentiated again. Argument-dependent lookup finds the right function: hence no math:: in front.
using math::cos, math::erf, math::exp, math::exp_coarse, math::exp_normal, math::expm1, math::log, math::log1p;
using math::floor_divide, math::log2, math::minus, math::plus, math::sigmoid, math::sin, math::tanh, math::times;
/// condition ? a : b; both are evaluated.
template <class T> LOCKSTEP_HD T select(bool condition, T a, T b) { return condition ? a : b; }
template <class T> LOCKSTEP_HD T power(T x, T y) { return T(std::pow(x, y)); }  ///< x^y
template <class T> LOCKSTEP_HD T logarithm(T x) { return T(std::log(x)); }      ///< natural logarithm
template <class T> LOCKSTEP_HD T digamma(T x) { return T(math::digamma(x)); }
template <class T> LOCKSTEP_HD T trigamma(T x) { return T(math::trigamma(x)); }
template <class T> LOCKSTEP_HD T tetragamma(T x) { return T(math::tetragamma(x)); }

/// x clamped to [low, high].
template <class T> LOCKSTEP_HD T clip(T x, T low, T high) {
  x = x < low ? low : x;
  x = x > high ? high : x;
  return (low == low) & (high == high) ? x : low + high;  // a NaN bound gives NaN
}

#define LOCKSTEP_VALUE template <class T> LOCKSTEP_HD static T value([[maybe_unused]] T x, [[maybe_unused]] Params<T> a)
#define LOCKSTEP_GRAD(kept)                   \
  static constexpr Reads reads = Reads::kept; \
  template <class T>                          \
  LOCKSTEP_HD static T grad([[maybe_unused]] T g, [[maybe_unused]] T kept, [[maybe_unused]] Params<T> a)

// --- arithmetic ---
struct Neg {
  LOCKSTEP_VALUE {
    if constexpr (std::is_integral_v<T>) return minus(T(0), x);
    else return -x;
  }
  LOCKSTEP_GRAD(none) { return -g; }
};
struct Abs {
  LOCKSTEP_VALUE {
    if constexpr (std::is_integral_v<T>) return x < 0 ? minus(T(0), x) : x;
    else return std::fabs(x);
  }
  LOCKSTEP_GRAD(input) { return select(input > T(0), g, select(input < T(0), -g, input * T(0))); }
};
struct Sign {
  LOCKSTEP_VALUE { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x == T(0) ? T(0) : x; }
  LOCKSTEP_GRAD(zero) { return T(0); }
};
struct Square {
  LOCKSTEP_VALUE { return times(x, x); }
  LOCKSTEP_GRAD(input) { return g * (T(2) * input); }
};
struct Sqrt {
  LOCKSTEP_VALUE { return std::sqrt(x); }
  LOCKSTEP_GRAD(output) { return g / (T(2) * output); }
};
struct Rsqrt {
  LOCKSTEP_VALUE { return T(1) / std::sqrt(x); }
  LOCKSTEP_GRAD(output) { return T(-0.5) * g * (output * output * output); }
};
struct Reciprocal {
  LOCKSTEP_VALUE { return T(1) / x; }
  LOCKSTEP_GRAD(output) { return -g * (output * output); }
};
struct AddScalar {
  LOCKSTEP_VALUE { return plus(x, a.p); }
  LOCKSTEP_GRAD(none) { return g; }
};
struct MulScalar {
  LOCKSTEP_VALUE { return times(x, a.p); }
  LOCKSTEP_GRAD(none) { return g * a.p; }
};
struct SubScalar {
  LOCKSTEP_VALUE { return minus(x, a.p); }
  LOCKSTEP_GRAD(none) { return g; }
};
struct DivScalar {
  LOCKSTEP_VALUE { return x / a.p; }
  LOCKSTEP_GRAD(none) { return g / a.p; }
};
struct RsubScalar {
  LOCKSTEP_VALUE { return minus(a.p, x); }
  LOCKSTEP_GRAD(none) { return -g; }
};
struct RdivScalar {
  LOCKSTEP_VALUE { return a.p / x; }
  LOCKSTEP_GRAD(input) { return -g * ((a.p / input) / input); }
};
struct Clamp {
  LOCKSTEP_VALUE { return clip(x, a.p, a.q); }
  // 0 at the bounds, as in PyTorch 2.15
  LOCKSTEP_GRAD(input) { return select((input > a.p) & (input < a.q), g, T(0)); }
};

// --- rounding; Round rounds halves to the even number ---
struct Floor {
  LOCKSTEP_VALUE { return std::floor(x); }
  LOCKSTEP_GRAD(zero) { return T(0); }
};
struct Ceil {
  LOCKSTEP_VALUE { return std::ceil(x); }
  LOCKSTEP_GRAD(zero) { return T(0); }
};
struct Round {
  LOCKSTEP_VALUE { return std::rint(x); }
  LOCKSTEP_GRAD(zero) { return T(0); }
};
struct Trunc {
  LOCKSTEP_VALUE { return std::trunc(x); }
  LOCKSTEP_GRAD(zero) { return T(0); }
};
struct LogicalNot {
  LOCKSTEP_VALUE { return T(x == T(0)); }
  LOCKSTEP_GRAD(zero) { return T(0); }
};

// --- exponentials and logarithms ---
struct Exp : Costly {
  LOCKSTEP_VALUE { return exp(x); }
  LOCKSTEP_GRAD(output) { return g * output; }
};
struct Expm1 : Costly {
  LOCKSTEP_VALUE { return expm1(x); }
  LOCKSTEP_GRAD(output) { return g * (output + T(1)); }
};
struct Log : Costly {
  LOCKSTEP_VALUE { return log(x); }
  LOCKSTEP_GRAD(input) { return g / input; }
};
struct Log2 : Costly {
  LOCKSTEP_VALUE { return log2(x); }
  LOCKSTEP_GRAD(input) { return g / (input * T(0.693147180559945309417)); }
};
struct Log1p : Costly {
  LOCKSTEP_VALUE { return log1p(x); }
  LOCKSTEP_GRAD(input) { return g / (T(1) + input); }
};

/// f32 elements with a magnitude of trig_limit or more are computed one by one, in f64.
struct Trigonometric : Costly {
  template <class T> LOCKSTEP_HD static bool is_large(T x) { return !(std::fabs(x) < T(math::trig_limit)); }
};
struct Sin : Trigonometric {
  LOCKSTEP_VALUE { return sin(x); }
  LOCKSTEP_GRAD(input) { return g * cos(input); }
  static double large_value(double x) { return std::sin(x); }
  static double large_grad(double g, double x) { return g * std::cos(x); }
};
struct Cos : Trigonometric {
  LOCKSTEP_VALUE { return cos(x); }
  LOCKSTEP_GRAD(input) { return -g * sin(input); }
  static double large_value(double x) { return std::cos(x); }
  static double large_grad(double g, double x) { return -g * std::sin(x); }
};

struct Tanh : Costly {
  LOCKSTEP_VALUE { return tanh(x); }
  LOCKSTEP_GRAD(output) { return g * (T(1) - output * output); }
};
struct Erf : Costly {
  LOCKSTEP_VALUE { return erf(x); }
  LOCKSTEP_GRAD(input) { return g * (T(1.12837916709551257390) * exp(-(input * input))); }  // 2 / sqrt(pi)
};
struct Sigmoid : Costly {
  LOCKSTEP_VALUE { return sigmoid(x); }
  LOCKSTEP_GRAD(output) { return g * (output * (T(1) - output)); }
};
struct LogSigmoid : Costly {
  LOCKSTEP_VALUE { return (x > T(0) ? T(0) : x) - log1p(exp(-std::fabs(x))); }
  LOCKSTEP_GRAD(input) { return g * sigmoid(-input); }
};
struct Softplus : Costly {  // p: beta, q: threshold
  LOCKSTEP_VALUE {
    const T scaled = x * a.p;
    return scaled <= a.q ? log1p(exp(scaled)) / a.p : a.q == a.q ? x : a.q;
  }
  LOCKSTEP_GRAD(input) { return select(input * a.p > a.q, g, g * sigmoid(input * a.p)); }
};

// --- activations ---
/// The gradient of an activation whose derivative is 0 for small x and 1 for large x: 0 for x < low, g for x > high,
/// else `inside` (which may be NaN for other x). Clipping x first instead would be slow: the compiler would still
/// multiply g by the derivative at the bound, and products with denormal results are slow.
template <class T> LOCKSTEP_HD T settled(T x, T low, T high, T g, T inside) {
  return select(x > high, g, select(x < low, T(0), inside));
}

struct Relu {
  LOCKSTEP_VALUE { return x < T(0) ? T(0) : x; }
  LOCKSTEP_GRAD(output) { return select(output <= T(0), T(0), g); }
};
struct LeakyRelu {
  LOCKSTEP_VALUE { return x > T(0) ? x : x * a.p; }
  LOCKSTEP_GRAD(input) { return select(input > T(0), g, g * a.p); }
};
struct Elu : Costly {
  LOCKSTEP_VALUE { return x > T(0) ? x : a.p * expm1(x); }
  LOCKSTEP_GRAD(input) { return select(input > T(0), g, g * (a.p * exp(input))); }
};
struct Silu : Costly {
  LOCKSTEP_VALUE { return x * sigmoid(x); }
  LOCKSTEP_GRAD(input) {
    const T e = exp_normal(-input), s = T(1) / (T(1) + e);
    return settled(input, T(-85), T(85), g, g * (s + input * s * (e * s)));  // e s = 1 - s without cancellation
  }
};
struct Mish : Costly {  // x tanh(softplus(x)); with e = exp(x) and n = e (e + 2) the tanh is n / (n + 2)
  LOCKSTEP_VALUE {
    const T e = exp(x > T(20) ? T(20) : x), n = e * (e + T(2));
    return x * (n / (n + T(2)));
  }
  LOCKSTEP_GRAD(input) {
    const T e = exp_normal(input), n = e * (e + T(2)), d = T(1) / (n + T(2)), t = n * d;
    // The derivative of tanh(softplus(x)) is (1 - t^2) * e / (1 + e), and 1 - t^2 = (1 + t) * 2 d without cancellation.
    return settled(input, T(-85), T(20), g, g * (t + input * ((T(1) + t) * (T(2) * d)) * (e / (T(1) + e))));
  }
};
/// Phi(x), the standard normal distribution function.
template <class T> LOCKSTEP_HD T normal_cdf(T x) { return T(0.5) * (T(1) + erf(x * T(0.70710678118654752440))); }
struct GeluErf : Costly {
  LOCKSTEP_VALUE { return x * normal_cdf(x); }
  LOCKSTEP_GRAD(input) {
    const T normal = T(0.39894228040143267794) * exp(T(-0.5) * input * input);  // 1 / sqrt(2 pi)
    return settled(input, T(-15), T(15), g, g * (normal_cdf(input) + input * normal));
  }
};
struct GeluTanh : Costly {  // x / 2 (1 + tanh u) = x / (1 + e^-2u) with 2u = 2 sqrt(2 / pi) (x + 0.044715 x^3)
  LOCKSTEP_VALUE {
    const T minus_2u = x * (T(-1.59576912160573071176) - T(0.07135481627260025) * (x * x));
    return x / (T(1) + exp_coarse(minus_2u));
  }
  LOCKSTEP_GRAD(input) {
    const T square = input * input,
            e = exp_normal(input * (T(-1.59576912160573071176) - T(0.07135481627260025) * square));
    const T s = T(1) / (T(1) + e), slope = T(1.59576912160573071176) + T(3 * 0.07135481627260025) * square;
    return settled(input, T(-10), T(10), g, g * (s + input * slope * s * (e * s)));
  }
};
struct Hardswish {
  LOCKSTEP_VALUE { return x * (clip(x + T(3), T(0), T(6)) / T(6)); }
  LOCKSTEP_GRAD(input) { return select(input < T(3), select(input <= T(-3), T(0), g * (input / T(3) + T(0.5))), g); }
};
struct Hardsigmoid {
  LOCKSTEP_VALUE { return clip(x + T(3), T(0), T(6)) / T(6); }
  LOCKSTEP_GRAD(input) { return select((input > T(-3)) & (input < T(3)), g / T(6), T(0)); }
};

// --- the gamma function ---
struct Lgamma : Costly {
  LOCKSTEP_VALUE { return T(math::lgamma(x)); }
  LOCKSTEP_GRAD(input) { return g * digamma(input); }
};
struct Digamma : Costly {
  LOCKSTEP_VALUE { return digamma(x); }
  LOCKSTEP_GRAD(input) { return g * trigamma(input); }
};
struct Trigamma : Costly {
  LOCKSTEP_VALUE { return trigamma(x); }
  LOCKSTEP_GRAD(input) { return g * tetragamma(input); }
};

// --- powers ---
struct PowScalar : Costly {
  LOCKSTEP_VALUE { return power(x, a.p); }
  LOCKSTEP_GRAD(input) { return select(a.p == T(0), T(0), g * (a.p * power(input, a.p - T(1)))); }
};
#undef LOCKSTEP_VALUE
#undef LOCKSTEP_GRAD

// --- two operands: grad0 is the derivative with respect to a, grad1 with respect to b ---
#define LOCKSTEP_VALUE2 template <class T> LOCKSTEP_HD static T value(T a, T b)
#define LOCKSTEP_GRAD2(part, kept)          \
  static constexpr int reads_##part = kept; \
  template <class T> LOCKSTEP_HD static T part([[maybe_unused]] T g, [[maybe_unused]] T a, [[maybe_unused]] T b)

struct Add {
  LOCKSTEP_VALUE2 { return plus(a, b); }
  LOCKSTEP_GRAD2(grad0, nothing) { return g; }
  LOCKSTEP_GRAD2(grad1, nothing) { return g; }
};
struct Sub {
  LOCKSTEP_VALUE2 { return minus(a, b); }
  LOCKSTEP_GRAD2(grad0, nothing) { return g; }
  LOCKSTEP_GRAD2(grad1, nothing) { return -g; }
};
struct Mul {
  LOCKSTEP_VALUE2 { return times(a, b); }
  LOCKSTEP_GRAD2(grad0, reads_b) { return g * b; }
  LOCKSTEP_GRAD2(grad1, reads_a) { return g * a; }
};
struct Div {
  LOCKSTEP_VALUE2 { return a / b; }
  LOCKSTEP_GRAD2(grad0, reads_b) { return g / b; }
  LOCKSTEP_GRAD2(grad1, both) { return -g * ((a / b) / b); }
};
struct FloorDivide : Costly {
  LOCKSTEP_VALUE2 { return floor_divide(a, b); }
  LOCKSTEP_GRAD2(grad0, reads_b) { return T(0); }
  LOCKSTEP_GRAD2(grad1, reads_b) { return T(0); }
};
struct Remainder : Costly {
  LOCKSTEP_VALUE2 {
    const T left = math::left_by(a, b);
    return math::signs_differ(left, b) ? left + b : left;
  }
  LOCKSTEP_GRAD2(grad0, reads_b) { return g; }
  LOCKSTEP_GRAD2(grad1, both) { return -g * floor_divide(a, b); }
};
struct Pow : Costly {
  LOCKSTEP_VALUE2 { return power(a, b); }
  LOCKSTEP_GRAD2(grad0, both) { return select(b == T(0), T(0), g * (b * power(a, b - T(1)))); }
  LOCKSTEP_GRAD2(grad1, both) { return select((a == T(0)) & (b >= T(0)), T(0), g * (power(a, b) * logarithm(a))); }
};
struct Maximum {  // if a equals b, each gets half the gradient
  LOCKSTEP_VALUE2 { return (a > b) | (a != a) ? a : b; }
  LOCKSTEP_GRAD2(grad0, both) { return select(a < b, T(0), select(a == b, g / T(2), g)); }
  LOCKSTEP_GRAD2(grad1, both) { return select(b < a, T(0), select(a == b, g / T(2), g)); }
};
struct Minimum {
  LOCKSTEP_VALUE2 { return (a < b) | (a != a) ? a : b; }
  LOCKSTEP_GRAD2(grad0, both) { return select(a > b, T(0), select(a == b, g / T(2), g)); }
  LOCKSTEP_GRAD2(grad1, both) { return select(b > a, T(0), select(a == b, g / T(2), g)); }
};
struct SiluMul : Costly {  // silu(a) b, the gated unit of SwiGLU (Shazeer, 2020)
  LOCKSTEP_VALUE2 { return a * sigmoid(a) * b; }
  LOCKSTEP_GRAD2(grad0, both) { return Silu::grad(g * b, a, {}); }
  LOCKSTEP_GRAD2(grad1, reads_a) { return g * (a * sigmoid(a)); }
};
#undef LOCKSTEP_VALUE2
#undef LOCKSTEP_GRAD2

// --- comparisons ---
struct Eq {
  template <class T> LOCKSTEP_HD static bool value(T a, T b) { return a == b; }
};
struct Ne {
  template <class T> LOCKSTEP_HD static bool value(T a, T b) { return a != b; }
};
struct Lt {
  template <class T> LOCKSTEP_HD static bool value(T a, T b) { return a < b; }
};
struct Le {
  template <class T> LOCKSTEP_HD static bool value(T a, T b) { return a <= b; }
};
struct Gt {
  template <class T> LOCKSTEP_HD static bool value(T a, T b) { return a > b; }
};
struct Ge {
  template <class T> LOCKSTEP_HD static bool value(T a, T b) { return a >= b; }
};
struct LogicalAnd {
  template <class T> LOCKSTEP_HD static bool value(T a, T b) { return (a != T(0)) & (b != T(0)); }
};
struct LogicalOr {
  template <class T> LOCKSTEP_HD static bool value(T a, T b) { return (a != T(0)) | (b != T(0)); }
};

// --- operations without a row in pointwise.def ---
struct Addcmul {
  template <class T> LOCKSTEP_HD static T value(T x, T b, T c, Params<T> a) { return plus(x, times(times(a.p, b), c)); }
};
struct Lerp {  // computed from the nearer end, so that weight 1 gives b exactly
  template <class T> LOCKSTEP_HD static T value(T x, T b, Params<T> a) {
    return a.p < T(0.5) ? x + a.p * (b - x) : b - (b - x) * (T(1) - a.p);
  }
};

}  // namespace lockstep::functor
