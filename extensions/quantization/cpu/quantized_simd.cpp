// The kernels for quantized weights, compiled for every instruction set, whatever the rest of the library is built for.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "extensions/quantization/cpu/quantized_kernels.h"
#include "tensor/half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12's own header leaves registers uninitialised on purpose
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#endif

namespace lockstep::on_cpu {

#if defined(__x86_64__)

namespace avx512 {
#define LOCKSTEP_TARGET [[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]]
#define LOCKSTEP_INLINE LOCKSTEP_TARGET [[gnu::always_inline]] inline
namespace {

using F = __m512;
constexpr int rows_of_tile = 6, tile_cols = 4;
constexpr int columns_for(int) { return 4; }
LOCKSTEP_INLINE F zero() { return _mm512_setzero_ps(); }
/// Copies v to all lanes by an integer instruction: on Zen 4, vbroadcastss would take 0.4 cycles more per 16 weights.
LOCKSTEP_INLINE F splat(float v) { return _mm512_castsi512_ps(_mm512_set1_epi32(std::bit_cast<int32_t>(v))); }
LOCKSTEP_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
LOCKSTEP_INLINE void store(float* p, F v) { _mm512_storeu_ps(p, v); }
LOCKSTEP_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
LOCKSTEP_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
LOCKSTEP_INLINE F codes8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
LOCKSTEP_INLINE void codes4(const uint8_t* p, float scale, F& low, F& high) {
  const F table = mul(_mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7), splat(scale));
  const __m512i pairs = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  low = _mm512_permutexvar_ps(pairs, table);  // indexed by the lowest four bits of each lane
  high = _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), table);
}
LOCKSTEP_INLINE void widen(const uint16_t* p, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 there = __mmask16(n - i >= 16 ? 0xffff : (1 << (n - i)) - 1);
    _mm512_mask_storeu_ps(to + i, there, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(there, p + i)));
  }
}
/// y[i] = the sum of the lanes of v[i], for n vectors. Sixteen vectors are summed at once: each step adds the
/// lanes of every vector in pairs, and puts the sums of two vectors into one vector.
template <int n> LOCKSTEP_INLINE void sums(const F* v, float* y) {
#pragma GCC unroll 2
  for (int first = 0; first < n; first += 16) {
    F half[8], quarter[4], pair[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const F a = first + 2 * i < n ? v[first + 2 * i] : zero(),
              b = first + 2 * i + 1 < n ? v[first + 2 * i + 1] : zero();
      half[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      quarter[i] = _mm512_add_ps(_mm512_shuffle_f32x4(half[2 * i], half[2 * i + 1], 0x88),
                                 _mm512_shuffle_f32x4(half[2 * i], half[2 * i + 1], 0xdd));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
      pair[i] = _mm512_add_ps(_mm512_shuffle_ps(quarter[2 * i], quarter[2 * i + 1], 0x44),
                              _mm512_shuffle_ps(quarter[2 * i], quarter[2 * i + 1], 0xee));
    const F all = _mm512_add_ps(_mm512_shuffle_ps(pair[0], pair[1], 0x88), _mm512_shuffle_ps(pair[0], pair[1], 0xdd));
    // Lane 4 l + j holds the sum of vector 4 j + l.
    const F in_order =
        _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), all);
    if (n - first >= 16) store(y + first, in_order);
    else _mm512_mask_storeu_ps(y + first, __mmask16((1 << (n - first)) - 1), in_order);
  }
}

/// Dot products of codes. vpdpbusd multiplies unsigned by signed bytes: 128 is added to each code of x, and 128 times
/// the sum of w's codes is subtracted at the end.
template <int rows, int cols>
LOCKSTEP_TARGET void dots_tile(const CodedMatrix& w, int64_t o, const int8_t* x, int64_t x_row, int32_t* out,
                               int64_t ld) {
  __m512i sum[rows][cols], shift[cols];
  const __m512i top = _mm512_set1_epi8(char(0x80));
  const uint8_t* const next = codes_after(w, o + cols);
#pragma GCC unroll 8
  for (int c = 0; c < cols; ++c) {
    shift[c] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) sum[r][c] = _mm512_setzero_si512();
  }
  for (int64_t k = 0; k < w.in; k += 64) {
    const __mmask64 there = w.in - k >= 64 ? ~__mmask64(0) : (__mmask64(1) << (w.in - k)) - 1;
    __m512i line[cols];
#pragma GCC unroll 8
    for (int c = 0; c < cols; ++c) {
      line[c] = _mm512_maskz_loadu_epi8(there, w.row(o + c) + k);
      __builtin_prefetch(next + k * cols + c * 64);
      shift[c] = _mm512_dpbusd_epi32(shift[c], top, line[c]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const __m512i one = _mm512_xor_si512(_mm512_loadu_si512(x + r * x_row + k), top);
#pragma GCC unroll 8
      for (int c = 0; c < cols; ++c) sum[r][c] = _mm512_dpbusd_epi32(sum[r][c], one, line[c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < cols; ++c) out[r * ld + c] = _mm512_reduce_add_epi32(_mm512_sub_epi32(sum[r][c], shift[c]));
}

bool works() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
}
#include "extensions/quantization/cpu/quantized_kernels.inc"

}  // namespace
const QuantizedKernels kernels{"avx512", works, few, many, dots};
#undef LOCKSTEP_TARGET
#undef LOCKSTEP_INLINE
}  // namespace avx512

namespace avx2 {
#define LOCKSTEP_TARGET [[gnu::target("avx2,fma,f16c")]]
#define LOCKSTEP_INLINE LOCKSTEP_TARGET [[gnu::always_inline]] inline
namespace {

struct F {
  __m256 low, high;
};
constexpr int rows_of_tile = 3, tile_cols = 2;
constexpr int columns_for(int rows) { return rows == 1 ? 4 : 2; }
LOCKSTEP_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
LOCKSTEP_INLINE F splat(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
LOCKSTEP_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LOCKSTEP_INLINE void store(float* p, F v) { _mm256_storeu_ps(p, v.low), _mm256_storeu_ps(p + 8, v.high); }
LOCKSTEP_INLINE F mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
LOCKSTEP_INLINE F fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
LOCKSTEP_INLINE __m128i eight(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
LOCKSTEP_INLINE F codes8(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight(p))), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight(p + 8)))};
}
/// Converts 32 codes of 4 bits to numbers. 8 was added to each stored code, so the number is code * scale - 8 * scale.
/// This is exact, because a scale has 11 significant bits.
LOCKSTEP_INLINE void codes4(const uint8_t* p, float scale, F& low, F& high) {
  const __m256i one = _mm256_cvtepu8_epi32(eight(p)), two = _mm256_cvtepu8_epi32(eight(p + 8)),
                mask = _mm256_set1_epi32(15);
  const F s = splat(scale), shift = splat(scale * -8);
  low =
      fma({_mm256_cvtepi32_ps(_mm256_and_si256(one, mask)), _mm256_cvtepi32_ps(_mm256_and_si256(two, mask))}, s, shift);
  high = fma({_mm256_cvtepi32_ps(_mm256_srli_epi32(one, 4)), _mm256_cvtepi32_ps(_mm256_srli_epi32(two, 4))}, s, shift);
}
LOCKSTEP_INLINE void widen(const uint16_t* p, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i))));
  for (; i < n; ++i) to[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(p[i])));
}
template <int n> LOCKSTEP_INLINE void sums(const F* v, float* y) {
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) {
    const __m256 half = _mm256_add_ps(v[i].low, v[i].high);
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)),
                 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    y[i] = _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
  }
}

/// Dot products of codes, multiplied as 16-bit integers, because vpmaddubsw would saturate.
template <int rows, int cols>
LOCKSTEP_TARGET void dots_tile(const CodedMatrix& w, int64_t o, const int8_t* x, int64_t x_row, int32_t* out,
                               int64_t ld) {
  __m256i sum[rows][cols];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < cols; ++c) sum[r][c] = _mm256_setzero_si256();
  const uint8_t* const next = codes_after(w, o + cols);
  for (int64_t k = 0; k < w.in; k += 16) {
    __builtin_prefetch(next + k * cols);
    __m256i line[cols];
#pragma GCC unroll 4
    for (int c = 0; c < cols; ++c) {
      uint8_t last[16] = {};
      const uint8_t* from = w.row(o + c) + k;
      if (w.in - k < 16) {
        std::memcpy(last, from, size_t(w.in - k));
        from = last;
      }
      line[c] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const __m256i one = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + r * x_row + k)));
#pragma GCC unroll 4
      for (int c = 0; c < cols; ++c) sum[r][c] = _mm256_add_epi32(sum[r][c], _mm256_madd_epi16(one, line[c]));
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < cols; ++c) {
      const __m128i quarter = _mm_add_epi32(_mm256_castsi256_si128(sum[r][c]), _mm256_extracti128_si256(sum[r][c], 1));
      const __m128i pair = _mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0x4e));
      out[r * ld + c] = _mm_cvtsi128_si32(_mm_add_epi32(pair, _mm_shuffle_epi32(pair, 0xb1)));
    }
}

// FMA implies F16C, which not all compilers can query.
bool works() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#include "extensions/quantization/cpu/quantized_kernels.inc"

}  // namespace
const QuantizedKernels kernels{"avx2", works, few, many, dots};
#undef LOCKSTEP_TARGET
#undef LOCKSTEP_INLINE
}  // namespace avx2
#endif

namespace portable {
#define LOCKSTEP_TARGET
#define LOCKSTEP_INLINE inline
namespace {

struct F {
  float at[16];
};
constexpr int rows_of_tile = 3, tile_cols = 2;
constexpr int columns_for(int rows) { return rows == 1 ? 4 : 2; }
template <class Fn> LOCKSTEP_INLINE F each(Fn&& fn) {
  F v;
  for (int l = 0; l < 16; ++l) v.at[l] = fn(l);
  return v;
}
LOCKSTEP_INLINE F splat(float v) {
  return each([&](int) { return v; });
}
LOCKSTEP_INLINE F zero() { return splat(0); }
LOCKSTEP_INLINE F load(const float* p) {
  return each([&](int l) { return p[l]; });
}
LOCKSTEP_INLINE void store(float* p, const F& v) { std::memcpy(p, v.at, sizeof v.at); }
LOCKSTEP_INLINE F mul(const F& a, const F& b) {
  return each([&](int l) { return a.at[l] * b.at[l]; });
}
LOCKSTEP_INLINE F fma(const F& a, const F& b, const F& c) {
  return each([&](int l) { return std::fma(a.at[l], b.at[l], c.at[l]); });
}
LOCKSTEP_INLINE F codes8(const uint8_t* p) {
  return each([&](int l) { return float(int8_t(p[l])); });
}
LOCKSTEP_INLINE void codes4(const uint8_t* p, float scale, F& low, F& high) {
  low = each([&](int l) { return float((p[l] & 15) - 8) * scale; });
  high = each([&](int l) { return float((p[l] >> 4) - 8) * scale; });
}
LOCKSTEP_INLINE void widen(const uint16_t* p, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = Half::decode(p[i]);
}
template <int n> LOCKSTEP_INLINE void sums(const F* v, float* y) {
  for (int i = 0; i < n; ++i) {
    float lanes[16];
    std::memcpy(lanes, v[i].at, sizeof lanes);
    for (int half = 8; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    y[i] = lanes[0];
  }
}

template <int rows, int cols>
void dots_tile(const CodedMatrix& w, int64_t o, const int8_t* x, int64_t x_row, int32_t* out, int64_t ld) {
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < cols; ++c) {
      const int8_t* const line = reinterpret_cast<const int8_t*>(w.row(o + c));
      int32_t sum = 0;
      for (int64_t k = 0; k < w.in; ++k)
        // The cast to int8_t is above, because g++ 12 miscompiles a cast in this loop: it reads unsigned bytes.
        sum += int32_t(x[r * x_row + k]) * line[k];
      out[r * ld + c] = sum;
    }
}

bool works() { return true; }
#include "extensions/quantization/cpu/quantized_kernels.inc"

}  // namespace
const QuantizedKernels kernels{"portable", works, few, many, dots};
#undef LOCKSTEP_TARGET
#undef LOCKSTEP_INLINE
}  // namespace portable

}  // namespace lockstep::on_cpu
