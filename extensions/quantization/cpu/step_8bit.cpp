// Optimizer steps on moments in 8 bits (block_codes.h). A block of 256 elements is decoded into the L1 cache,
// updated by the step of the f32 kernel, and encoded again. Threads receive whole blocks, and a short last block is
// padded with zeros, so the results for a block depend on that block alone.
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "extensions/quantization/block_codes.h"
#include "optim/cpu/step_lanes.h"
#include "tensor/cpu/parallel.h"
#include "tensor/ops.h"

namespace lockstep {

namespace {

using namespace on_cpu;

struct CodeMap {
  std::array<float, 256> values, middles;  // the numbers of the codes; midpoints between adjacent ones
  /// below[key] is the code of the smallest float whose upper 16 bits are `key`. The other floats with these upper
  /// bits have this code or the next: they span 1/128 of a power of two, which has at most one midpoint between codes.
  std::array<uint8_t, (1 << 16) + 3> below;
  explicit CodeMap(bool is_signed) {
    size_t n = 0;
    for (int exponent = -6; exponent <= 0; ++exponent) {
      const int items = 1 << (6 + exponent + (is_signed ? 0 : 1));  // equal parts of [0.1, 1]
      const float scale = float(std::pow(10.0, exponent)), step = (1 - 0.1F) / float(items);
      const auto border = [&](int i) {  // as torch.linspace, which computes the second half from the end
        return i < (items + 1) / 2 ? std::fma(step, float(i), 0.1F) : std::fma(-step, float(items - i), 1.F);
      };
      for (int i = 0; i < items; ++i) {
        const float value = scale * ((border(i) + border(i + 1)) / 2);
        values[n++] = value;
        if (is_signed) values[n++] = -value;
      }
    }
    values[n++] = 0;
    values[n++] = 1;
    std::sort(values.begin(), values.end());
    for (size_t i = 0; i < 255; ++i) middles[i] = (values[i] + values[i + 1]) / 2;
    middles[255] = INFINITY;
    for (uint32_t key = 0; key < 1 << 16; ++key) {
      const float least = std::bit_cast<float>(key >> 15 ? key << 16 | 0xffff : key << 16);
      below[key] = uint8_t(std::lower_bound(middles.begin(), middles.end(), least) - middles.begin());
      if (std::isnan(least)) below[key] = 0;
    }
  }
};

const CodeMap& map_of(bool is_signed) {
  static const CodeMap with_sign(true), without(false);
  return is_signed ? with_sign : without;
}

#ifdef __AVX512F__

// The intrinsics here have a mask: those without a mask have an uninitialised operand, which makes GCC 12 warn.
constexpr __mmask16 every = 0xffff;
__m512 gathered(__m512i at, const float* from) {
  return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), every, at, from, 4);
}

void decode_block(const uint8_t* codes, float absmax, const CodeMap& map, float* to) {
  for (int i = 0; i < code_block; i += 16) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    const __m512i at = _mm512_maskz_cvtepu8_epi32(every, some);
    _mm512_storeu_ps(to + i, _mm512_mul_ps(gathered(at, map.values.data()), _mm512_set1_ps(absmax)));
  }
}

void encode_scaled(const float* from, float divisor, const CodeMap& map, bool is_signed, uint8_t* codes) {
  const __m512i one = _mm512_set1_epi32(1), byte = _mm512_set1_epi32(255);
  for (int i = 0; i < code_block; i += 16) {
    const __m512 x = _mm512_div_ps(_mm512_loadu_ps(from + i), _mm512_set1_ps(divisor));
    const __m512i key = _mm512_maskz_srli_epi32(every, _mm512_castps_si512(x), 16);
    __m512i at = _mm512_mask_i32gather_epi32(one, every, key, map.below.data(), 1);
    at = _mm512_and_si512(at, byte);
    const __mmask16 above = _mm512_cmp_ps_mask(x, gathered(at, map.middles.data()), _CMP_GT_OQ);
    at = _mm512_mask_add_epi32(at, above, at, one);
    const __mmask16 positive = is_signed ? 0 : _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
    at = _mm512_mask_max_epi32(at, positive, at, one);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_maskz_cvtepi32_epi8(every, at));
  }
}

#else

void decode_block(const uint8_t* codes, float absmax, const CodeMap& map, float* to) {
  for (int i = 0; i < code_block; ++i) to[i] = map.values[codes[i]] * absmax;
}

void encode_scaled(const float* from, float divisor, const CodeMap& map, bool is_signed, uint8_t* codes) {
  for (int i = 0; i < code_block; ++i) {
    const float x = from[i] / divisor;
    int at = map.below[std::bit_cast<uint32_t>(x) >> 16];
    at += int(x > map.middles[size_t(at)]);
    codes[i] = uint8_t(std::max(at, int(!is_signed && x > 0)));
  }
}

#endif

/// Encodes a block. Returns the largest magnitude, or NaN if there is a NaN.
float encode_block(const float* from, const CodeMap& map, bool is_signed, uint8_t* codes) {
  int32_t largest = 0;  // non-negative floats are ordered like their bits
  for (int i = 0; i < code_block; ++i) largest = std::max(largest, std::bit_cast<int32_t>(from[i]) & 0x7fffffff);
  const float absmax = std::bit_cast<float>(largest);
  encode_scaled(from, absmax == 0 ? 1 : absmax, map, is_signed, codes);
  return absmax;
}

constexpr int64_t grain_blocks = step_grain / code_block;

/// Calls fn(number of the block, index of its first element, count of its elements) for all blocks, on several threads.
template <class Fn> void each_block(int64_t numel, const Fn& fn) {
  parallel_for(code_blocks(numel), grain_blocks, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) fn(b, b * code_block, std::min(code_block, numel - b * code_block));
  });
}

void check_codes(const char* op, const Tensor& like, const BlockCodes& c) {
  LOCKSTEP_CHECK(c.codes.dtype() == u8 && c.codes.numel() == like.numel() && c.absmax.dtype() == f32 &&
                     c.absmax.numel() == code_blocks(like.numel()),
                 "[", op, "] expected ", like.numel(), " codes in u8 and ", code_blocks(like.numel()),
                 " f32 block maxima, got ", c.codes.numel(), " in ", c.codes.dtype(), " and ", c.absmax.numel(),
                 "; create the optimizer state anew for this parameter");
}

template <int states, class Step>
void update_coded(const char* op, Tensor& p, const Tensor& grad, const BlockCodes* const (&state)[states], Tensor& low,
                  const Step& step) {
  LOCKSTEP_CHECK(
      p.device().is_cpu(), "[", op,
      "] no cuda kernel for optimizer state in 8 bits; use the optimizer with f32 state, or offload it to cpu");
  LOCKSTEP_CHECK(p.dtype() == f32, "[", op, "] expected f32 parameters for state in 8 bits, got ", p.dtype(),
                 "; use the optimizer with f32 state");
  uint8_t* codes[states];
  float* absmax[states];
  const CodeMap* maps[states];
  for (int k = 0; k < states; ++k) {
    check_codes(op, p, *state[k]);
    codes[k] = state[k]->codes.template data<uint8_t>();
    absmax[k] = state[k]->absmax.template data<float>();
    maps[k] = &map_of(state[k]->is_signed);
  }
  float* const values = p.data<float>();
  dispatch<float, Half, BFloat16>(grad.dtype(), op, [&]<class G> {
    const G* const gradients = grad.data<G>();
    each_block(p.numel(), [&](int64_t block, int64_t first, int64_t n) {
      alignas(64) float moments[states][code_block], short_value[code_block];
      alignas(64) G short_gradient[code_block];
      uint8_t some[code_block];
      const bool is_short = n < code_block;
      const auto padded = [&](auto* from, auto* room) -> decltype(from) {  // a short block with zeros behind it
        if (!is_short) return from;
        std::fill(std::copy(from, from + n, room), room + code_block, std::remove_pointer_t<decltype(room)>(0));
        return room;
      };
      float *at[states + 1] = {}, *const value = padded(values + first, short_value);
      const G* const gradient = padded(gradients + first, short_gradient);
      for (int k = 0; k < states; ++k) {
        at[k] = moments[k];
        decode_block(padded(codes[k] + first, some), absmax[k][block], *maps[k], at[k]);
        if (is_short) std::fill(at[k] + n, at[k] + code_block, 0.F);
      }
      step_vectors<states>(value, gradient, at, code_block / lane_count<float>, step);
      if (is_short) std::copy(value, value + n, values + first);
      for (int k = 0; k < states; ++k) {
        if (is_short) std::fill(at[k] + n, at[k] + code_block, 0.F);
        absmax[k][block] = encode_block(at[k], *maps[k], state[k]->is_signed, is_short ? some : codes[k] + first);
        if (is_short) std::copy(some, some + n, codes[k] + first);
      }
      if (low.defined())
        dispatch<Half, BFloat16>(low.dtype(), op, [&]<class L> {
          L* const to = low.data<L>() + first;
          for (int64_t i = 0; i < n; ++i) to[i] = L(values[first + i]);
        });
    });
  });
}

}  // namespace

const std::array<float, 256>& code_map(bool is_signed) { return map_of(is_signed).values; }

void encode_blocks(const Tensor& from, const BlockCodes& to) {
  check_codes("encode_blocks", from, to);
  const float* const values = from.data<float>();
  each_block(from.numel(), [&](int64_t block, int64_t first, int64_t n) {
    float padded[code_block] = {};
    uint8_t codes[code_block];
    std::copy(values + first, values + first + n, padded);
    to.absmax.data<float>()[block] = encode_block(padded, map_of(to.is_signed), to.is_signed, codes);
    std::copy(codes, codes + n, to.codes.data<uint8_t>() + first);
  });
}

Tensor decode_blocks(const BlockCodes& from) {
  Tensor to = empty(from.codes.shape(), {.dtype = f32});
  check_codes("decode_blocks", to, from);
  const auto& map = code_map(from.is_signed);
  each_block(to.numel(), [&](int64_t block, int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; ++i)
      to.data<float>()[i] = map[from.codes.data<uint8_t>()[i]] * from.absmax.data<float>()[block];
  });
  return to;
}

void adam_8bit(Tensor& p, const Tensor& grad, const BlockCodes& m, const BlockCodes& v, Tensor& low,
               const AdamArgs& args) {
  update_coded<2>("adam_8bit", p, grad, {&m, &v}, low, optim_steps::Adam<float, false>(args));
}

void lion_8bit(Tensor& p, const Tensor& grad, const BlockCodes& m, Tensor& low, const LionArgs& args) {
  update_coded<1>("lion_8bit", p, grad, {&m}, low, optim_steps::Lion<float>(args));
}

}  // namespace lockstep
