#pragma once
// Vectors of 64 bytes for kernels that process rows. They use the compiler's vector extension in three cases: with
// AVX-512 (a vector is one register), with clang (which compiles larger vectors well) and with sanitizers (for a
// shorter compile time). Otherwise a vector is an array of registers (split_vector.h). f16 and bf16 are loaded into f32
// lanes and rounded once when stored. The end of a row uses the same code, with a neutral value in the missing lanes.
#if defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tensor/cpu/split_vector.h"
#include "tensor/dtype.h"

namespace lockstep::on_cpu {

/// The type that a kernel computes in: double for double, float for everything else.
template <class T> using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;

#if defined(__clang__) || defined(__AVX512F__)
/// The type of a vector of 64 bytes.
template <class A> struct LanesOf { typedef A type __attribute__((vector_size(64))); };
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/// The type of a vector of 64 bytes.
template <class A> struct LanesOf { typedef A type __attribute__((vector_size(64))); };
// Integers whose sums and products wrap around without a sanitizer's report.
template <> struct LanesOf<int64_t> { using type = SplitVector<int64_t, 8>; };
template <> struct LanesOf<int32_t> { using type = SplitVector<int32_t, 16>; };  ///< wraps around, too
#else
/// The type of a vector of 64 bytes.
template <class A> struct LanesOf { using type = SplitVector<A, int(64 / sizeof(A))>; };
#endif
template <class A> using Lanes = typename LanesOf<A>::type;  ///< a vector of 64 bytes
/// Number of elements of a Lanes<A>.
template <class A> inline constexpr int lane_count = int(64 / sizeof(A));
template <class A> inline constexpr A infinity = std::numeric_limits<A>::infinity();  ///< positive infinity

/// The number of elements in a full vector as a compile-time constant, to pass as `count` to load() and store().
template <class A> using Full = std::integral_constant<int, lane_count<A>>;

/// A vector with `value` in all lanes.
template <class A> [[gnu::always_inline]] inline Lanes<A> splat(A value) { return Lanes<A>{} + value; }

using Words = Lanes<uint32_t>;                                 // the bits of Lanes<float>
using ShortWords = uint16_t __attribute__((vector_size(32)));  // sixteen f16 or bf16

// decode() converts sixteen f16 or bf16 to f32 at once, and encode() sixteen f32 to f16 or bf16. They give the same
// bits as Half and BFloat16 (tensor/half.h), but without branches.
[[gnu::always_inline]] inline Lanes<float> decode(ShortWords bits, BFloat16) {
  return as<Lanes<float>>(convert_lanes<Words>(bits) << 16);
}

#if defined(__AVX512BW__) && defined(__AVX512VL__)
// These conversions use the processor's instructions. For NaN they correct the result to that of tensor/half.h: the
// instruction for decoding makes a signalling NaN quiet, and the one for encoding keeps the payload of a NaN.
[[gnu::always_inline]] inline Lanes<float> decode(ShortWords bits, Half) {
  const __mmask16 signalling = _mm256_cmplt_epu16_mask(__m256i((bits & 0x7fffu) - 0x7c01u), _mm256_set1_epi16(0x1ff));
  const __m512i f = _mm512_castps_si512(_mm512_maskz_cvtph_ps(0xffff, __m256i(bits)));
  return Lanes<float>(_mm512_mask_xor_epi32(f, signalling, f, _mm512_set1_epi32(0x400000)));
}
/// Sixteen f32 to f16.
[[gnu::always_inline]] inline ShortWords encode(Lanes<float> v, Half) {
  const __m256i h = _mm512_maskz_cvtps_ph(0xffff, __m512(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                sign = __m256i(ShortWords(h) & 0x8000u);
  const __mmask16 nan = _mm512_cmp_ps_mask(__m512(v), __m512(v), _CMP_UNORD_Q);
  return ShortWords(_mm256_mask_mov_epi16(h, nan, _mm256_or_si256(sign, _mm256_set1_epi16(0x7e00))));
}
#else
/// Sixteen f16 to f32.
[[gnu::always_inline]] inline Lanes<float> decode(ShortWords bits, Half) {
  const Words h = convert_lanes<Words>(bits), magnitude = h & 0x7fffu;
  const Words scaled = as<Words>(as<Lanes<float>>(magnitude << 13) * 0x1p112f);
  return as<Lanes<float>>(choose(magnitude >= 0x7c00u, 0x7f800000u | magnitude << 13, scaled) | (h & 0x8000u) << 16);
}

/// Sixteen f32 to f16.
[[gnu::always_inline]] inline ShortWords encode(Lanes<float> v, Half) {
  const Words f = as<Words>(v), magnitude = f & 0x7fffffffu;
  const Words normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const Words small = as<Words>(as<Lanes<float>>(magnitude) + 0.5f) - 0x3f000000u;  // subnormal: the addition rounds
  const Words none = {}, special = choose(magnitude > 0x7f800000u, none + 0x7e00u, none + 0x7c00u);
  const Words result = choose(magnitude >= 0x477ff000u, special, choose(magnitude < 0x38800000u, small, normal));
  return convert_lanes<ShortWords>(result | ((f >> 16) & 0x8000u));
}
#endif

/// Sixteen f32 to bf16.
[[gnu::always_inline]] inline ShortWords encode(Lanes<float> v, BFloat16) {
  const Words f = as<Words>(v), rounded = f + 0x7fffu + ((f >> 16) & 1u);
  return convert_lanes<ShortWords>(choose((f & 0x7fffffffu) > 0x7f800000u, f | 0x400000u, rounded) >> 16);
}

/// Loads p[0 .. count), with `fill` in the other lanes.
template <class T, class Count>
[[gnu::always_inline]] inline Lanes<Acc<T>> load(const T* p, Count count, Acc<T> fill = 0) {
  using A = Acc<T>;
  if constexpr (std::is_same_v<Count, Full<A>>) {
    std::conditional_t<std::is_same_v<T, A>, Lanes<A>, ShortWords> v;
    copy_in(p, v);
    if constexpr (std::is_same_v<T, A>) return v;
    else return decode(v, T());
  } else {
    alignas(64) A lanes[lane_count<A>];
    if constexpr (std::is_same_v<T, A>) {
      for (int l = 0; l < lane_count<A>; ++l) lanes[l] = l < count ? p[l] : fill;
    } else {
      T part[lane_count<A>] = {};
      for (int l = 0; l < count; ++l) part[l] = p[l];
      copy_out(load(part, Full<A>()), lanes);
      for (int l = count; l < lane_count<A>; ++l) lanes[l] = fill;
    }
    Lanes<A> v;
    copy_in(lanes, v);
    return v;
  }
}

/// Loads one register of lanes<A> numbers. Reads the first `count` from p and converts them to A; the others are 0.
template <class A, class T> [[gnu::always_inline]] inline Vector<A> read(const T* p, int count) {
  constexpr int w = lanes<A>;
  Vector<A> v{};
  if constexpr (!std::is_same_v<A, T> && w == lane_count<float>) {
    v = count == w ? load(p, Full<float>()) : load(p, count);
  } else if (std::is_same_v<A, T> && count == w) {
    std::memcpy(&v, p, sizeof v);
  } else {
    for (int l = 0; l < count; ++l) v[l] = A(p[l]);
  }
  return v;
}

/// Stores the first `count` lanes of v to p.
template <class T, class Count> [[gnu::always_inline]] inline void store(T* p, Lanes<Acc<T>> v, Count count) {
  using A = Acc<T>;
  if constexpr (!std::is_same_v<Count, Full<A>>) {
    alignas(64) T part[lane_count<A>];
    store(part, v, Full<A>());
    for (int l = 0; l < count; ++l) p[l] = part[l];
  } else if constexpr (std::is_same_v<T, A>) {
    copy_out(v, p);
  } else {
    const ShortWords bits = encode(v, T());
    std::memcpy(static_cast<void*>(p), &bits, sizeof bits);
  }
}

/// Divides [0, n) into vectors and calls fn(i, count, k) for each: `count` elements from i on. k is 0, 1, 2, 3, 0, ...
/// and known to the compiler, so sums can be kept in four independent vectors. The order depends on n alone.
template <class A, class Fn> [[gnu::always_inline]] inline void each_vector(int64_t n, Fn&& fn) {
  constexpr int w = lane_count<A>;
  constexpr Full<A> full;
  int64_t i = 0;
  for (; i + 4 * w <= n; i += 4 * w) {
    fn(i, full, std::integral_constant<int, 0>());
    fn(i + w, full, std::integral_constant<int, 1>());
    fn(i + 2 * w, full, std::integral_constant<int, 2>());
    fn(i + 3 * w, full, std::integral_constant<int, 3>());
  }
  for (; i + w <= n; i += w) fn(i, full, std::integral_constant<int, 0>());
  if (i < n) fn(i, int(n - i), std::integral_constant<int, 1>());
}

/// Adds the lanes in a fixed order, as a tree.
template <class A> [[gnu::always_inline]] inline A sum_lanes(Lanes<A> v) {
  A lanes[lane_count<A>];
  copy_out(v, lanes);
#pragma GCC unroll 4
  for (int half = lane_count<A> / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

/// Adds the lanes of four vectors.
template <class A> [[gnu::always_inline]] inline A sum_lanes(const Lanes<A> (&v)[4]) {
  return sum_lanes<A>((v[0] + v[1]) + (v[2] + v[3]));
}

/// The larger of each pair of lanes.
template <class A> [[gnu::always_inline]] inline Lanes<A> max_of(Lanes<A> a, Lanes<A> b) { return choose(a > b, a, b); }

/// The maximum over the lanes of four vectors.
template <class A> A max_lanes(const Lanes<A> (&v)[4]) {
  A lanes[lane_count<A>];
  copy_out(max_of<A>(max_of<A>(v[0], v[1]), max_of<A>(v[2], v[3])), lanes);
  for (int half = lane_count<A> / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] = lanes[l] > lanes[l + half] ? lanes[l] : lanes[l + half];
  return lanes[0];
}

/// The square root of each lane.
template <class A> [[gnu::always_inline]] inline Lanes<A> sqrt_lanes(Lanes<A> v) {
  alignas(64) A lanes[lane_count<A>];
  copy_out(v, lanes);
  for (int l = 0; l < lane_count<A>; ++l) lanes[l] = std::sqrt(lanes[l]);
  copy_in(lanes, v);
  return v;
}

/// exp(x) for x <= 88, to about one unit in the last place. Results below 2^-126 become 0, NaN stays NaN. (math::exp in
/// a loop over lanes takes three times as long: it also handles large x and denormal results.)
[[gnu::always_inline]] inline Lanes<float> exp_lanes(Lanes<float> x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 leaves the integer n in the low bits of t.
  const Lanes<float> t = x * 1.44269504f + 12582912.f;
  const Lanes<float> n = t - 12582912.f;
  const Lanes<float> r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Lanes<float> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.f;
  // 2^n. It is wrong for x < -87.33654, where choose() returns 0 instead.
  const Lanes<float> power = as<Lanes<float>>((as<Words>(t) << 23) + 0x3f800000u);
  return choose(x < -87.33654f, splat(0.f), p * power);
}

/// exp(x) of each lane. f64 is used in gradient checks, where the C library's exp is fast enough.
[[gnu::always_inline]] inline Lanes<double> exp_lanes(Lanes<double> x) {
  double lanes[lane_count<double>];
  copy_out(x, lanes);
  for (double& number : lanes) number = std::exp(number);
  copy_in(lanes, x);
  return x;
}

}  // namespace lockstep::on_cpu
