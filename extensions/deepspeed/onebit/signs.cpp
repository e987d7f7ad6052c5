// Vectorised conversion between floats and signs. See signs.h.
#include "extensions/deepspeed/onebit/signs.h"

#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"

namespace lockstep::onebit {

namespace {

using namespace on_cpu;

constexpr int64_t block = 4096;       // elements per partial sum, accumulated in f32 lanes
constexpr int w = lane_count<float>;  // lanes of a vector: 16, two bytes of signs

/// Returns the vector 1, 2, 4, ...: in lane l, bit l is set.
Words bit_of_lane() {
  constexpr auto bits = [] {
    std::array<uint32_t, w> all{};
    for (int l = 0; l < w; ++l) all[size_t(l)] = 1u << l;
    return all;
  }();
  Words v;
  copy_in(bits.data(), v);
  return v;
}

[[gnu::always_inline]] inline Lanes<float> magnitude_of(Lanes<float> x) {
  return as<Lanes<float>>(as<Words>(x) & 0x7fffffffu);
}

/// Returns a mask in which bit l is set if lane l of x is >= 0. -0 counts as >= 0, NaN does not.
[[gnu::always_inline]] inline uint32_t signs_of(Lanes<float> x) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  return _mm512_cmp_ps_mask(__m512(x), _mm512_setzero_ps(), _CMP_GE_OQ);
#else
  uint32_t set[w], all = 0;
  copy_out(choose(x >= 0.f, bit_of_lane(), Words{}), set);
  for (const uint32_t bit : set) all |= bit;
  return all;
#endif
}

[[gnu::always_inline]] inline Lanes<float> signed_scale(uint32_t bits, float scale) {
  return choose(((Words{} + bits) & bit_of_lane()) != 0u, splat(scale), splat(-scale));
}

uint32_t read_bits(const uint8_t* bits, int64_t n) {
  return n > 8 ? uint32_t(bits[0]) | uint32_t(bits[1]) << 8 : bits[0];
}

/// Calls fn(i, count) for every vector of elements i .. i + count - 1 of [0, n). Only the last vector may be short.
template <class Fn> void for_vectors(int64_t n, Fn&& fn) {
  constexpr Full<float> full;
  parallel_for(ceil_div(n, w), grain / w, [&](int64_t first, int64_t last) {
    const int64_t full_vectors = std::min(last, n / w);
    for (int64_t v = first; v < full_vectors; ++v) fn(v * w, full);
    if (full_vectors < last) fn(full_vectors * w, int(n - full_vectors * w));
  });
}

}  // namespace

double add_error(const float* x, float* error, int64_t n, Scale scale) {
  const int64_t blocks = ceil_div(n, block);
  std::vector<double> sums(static_cast<size_t>(blocks));
  parallel_for(blocks, grain / block, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = b * block, count = std::min(block, n - begin);
      Lanes<float> sum[4] = {};
      each_vector<float>(count, [&](int64_t i, auto lanes, auto k) {
        Lanes<float> value = load(error + begin + i, lanes);
        if (x) {
          value += load(x + begin + i, lanes);
          store(error + begin + i, value, lanes);
        }
        sum[k] += scale == Scale::rms ? value * value : magnitude_of(value);
      });
      const Lanes<float> all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      for (int l = 0; l < w; ++l) sums[size_t(b)] += double(all[l]);
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

float scale_of(double sum, int64_t n, Scale scale) {
  if (n == 0) return 0;
  return float(scale == Scale::rms ? std::sqrt(sum / double(n)) : sum / double(n));
}

void take_signs(float* value, float scale, int64_t n, uint8_t* bits) {
  for_vectors(n, [&](int64_t i, auto count) {
    const Lanes<float> x = load(value + i, count, 0);
    const uint32_t set = signs_of(x) & ((1u << count) - 1);
    store(value + i, x - signed_scale(set, scale), count);
    bits[i / 8] = uint8_t(set);
    if (count > 8) bits[i / 8 + 1] = uint8_t(set >> 8);
  });
}

void put_signs(const uint8_t* bits, float scale, int64_t n, float* out) {
  for_vectors(
      n, [&](int64_t i, auto count) { store(out + i, signed_scale(read_bits(bits + i / 8, count), scale), count); });
}

void add_signs(const uint8_t* bits, float scale, int64_t n, float* out) {
  for_vectors(n, [&](int64_t i, auto count) {
    store(out + i, load(out + i, count) + signed_scale(read_bits(bits + i / 8, count), scale), count);
  });
}

}  // namespace lockstep::onebit
