// Ranges and random numbers. Every element is a pure function of (key, its flat index), computed by the same
// instructions wherever it lies. So its bits depend neither on threads, nor on the length of the tensor, nor on the
// device (random_math.h).
#include <cmath>

#include "tensor/convert.h"
#include "tensor/cpu/parallel.h"
#include "tensor/kernels.h"
#include "tensor/random_math.h"

namespace lockstep::on_cpu {

using namespace random_math;

namespace {

// Random words are made in blocks: 64 Philox counters give four words each, in the order of the elements.
constexpr int counters = 64, words_per_block = 4 * counters;

// philox() for 64 counters at once. GCC vectorises the products, because x0 to x3 are 64-bit integers.
void philox_block(PhiloxKey key, uint64_t first, uint32_t* __restrict out) {
  for (int i = 0; i < counters; ++i) {
    const uint64_t counter = first + uint64_t(i);
    uint64_t x0 = uint32_t(counter), x1 = counter >> 32, x2 = uint32_t(key.stream), x3 = key.stream >> 32;
    uint32_t k0 = uint32_t(key.seed), k1 = uint32_t(key.seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = uint64_t(0xD2511F53u) * uint32_t(x0), b = uint64_t(0xCD9E8D57u) * uint32_t(x2);
      x0 = (b >> 32) ^ x1 ^ k0;
      x1 = uint32_t(b);
      x2 = (a >> 32) ^ x3 ^ k1;
      x3 = uint32_t(a);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    out[4 * i] = uint32_t(x0);
    out[4 * i + 1] = uint32_t(x1);
    out[4 * i + 2] = uint32_t(x2);
    out[4 * i + 3] = uint32_t(x3);
  }
}

// Fills `out` block by block: make(words, values) turns 256 words into `block` values of type T.
template <class T, int block, class Out, class Make> void fill_blocks(Out* out, int64_t n, PhiloxKey key, Make&& make) {
  const int64_t blocks = (n + block - 1) / block;
  parallel_for(blocks, 64, [&](int64_t begin, int64_t end) {
    alignas(64) uint32_t words[words_per_block];
    alignas(64) T values[block];
    for (int64_t b = begin; b < end; ++b) {
      philox_block(key, uint64_t(b) * counters, words);
      make(words, values);
      const int64_t start = b * block, count = std::min<int64_t>(block, n - start);
      for (int64_t i = 0; i < count; ++i) out[start + i] = convert<Out>(values[i]);
    }
  });
}

}  // namespace

void iota(Tensor& out, Scalar start, Scalar step) {
  dispatch_all(out.dtype(), "iota", [&]<class T> {
    using C = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
    const C from = start.to<C>(), by = step.to<C>();
    T* data = out.data<T>();
    parallel_for(out.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) data[i] = convert<T>(from + C(i) * by);
    });
  });
}

void uniform(Tensor& out, double low, double high, PhiloxKey key) {
  dispatch<float, double, Half, BFloat16>(out.dtype(), "uniform", [&]<class T> {
    T* data = out.data<T>();
    if constexpr (std::is_same_v<T, double>) {
      const double greatest = max_below<T>(low, high), width = high - low;
      fill_blocks<double, words_per_block / 2>(data, out.numel(), key, [=](const uint32_t* words, double* values) {
        for (int i = 0; i < words_per_block / 2; ++i)
          values[i] = scaled(unit(words[2 * i], words[2 * i + 1]), low, width, greatest);
      });
    } else {
      const float greatest = max_below<T>(low, high), base = float(low), width = float(high - low);
      fill_blocks<float, words_per_block>(data, out.numel(), key, [=](const uint32_t* words, float* values) {
        for (int i = 0; i < words_per_block; ++i) values[i] = scaled(unit(words[i]), base, width, greatest);
      });
    }
  });
}

// Box and Muller: two uniform numbers give two normal ones.
void normal(Tensor& out, double mean, double deviation, PhiloxKey key) {
  dispatch<float, double, Half, BFloat16>(out.dtype(), "normal", [&]<class T> {
    T* data = out.data<T>();
    if constexpr (std::is_same_v<T, double>) {
      fill_blocks<double, words_per_block / 2>(data, out.numel(), key, [=](const uint32_t* words, double* values) {
        for (int i = 0; i < words_per_block / 4; ++i) {
          const uint32_t* w = words + 4 * i;
          const Pair<double> pair = normals_of(w[0], w[1], w[2], w[3], mean, deviation);
          values[2 * i] = pair.first, values[2 * i + 1] = pair.second;
        }
      });
    } else {
      const float m = float(mean), d = float(deviation);
      fill_blocks<float, words_per_block>(data, out.numel(), key, [=](const uint32_t* words, float* values) {
        for (int i = 0; i < words_per_block / 2; ++i) {
          const Pair<float> pair = normals_of(words[2 * i], words[2 * i + 1], m, d);
          values[2 * i] = pair.first, values[2 * i + 1] = pair.second;
        }
      });
    }
  });
}

void randint(Tensor& out, int64_t low, int64_t high, PhiloxKey key) {
  const uint64_t range = uint64_t(high) - uint64_t(low);
  dispatch<float, double, Half, BFloat16, int64_t, int32_t, int8_t, uint8_t>(out.dtype(), "randint", [&]<class T> {
    fill_blocks<int64_t, words_per_block / 2>(
        out.data<T>(), out.numel(), key, [=](const uint32_t* words, int64_t* values) {
          for (int i = 0; i < words_per_block / 2; ++i)
            values[i] = uniform_integer(words[2 * i], words[2 * i + 1], low, range);
        });
  });
}

void dropout(const Tensor& x, double p, PhiloxKey key, const Region& place, const Tensor& add, Tensor& out) {
  const int64_t n = out.numel();
  // Element i is kept if its random word is at least p * 2^32. For p == 1 no element is kept.
  const uint64_t threshold = uint64_t(std::ceil(p * 0x1p32));
  const bool drop_all = threshold > 0xffffffffu;
  const uint32_t least = uint32_t(std::min<uint64_t>(threshold, 0xffffffffu));
  dispatch<float, double, Half, BFloat16>(out.dtype(), "dropout", [&]<class T> {
    using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const T* in = x.data<T>();
    T* result = out.data<T>();
    const Compute scale = drop_all ? Compute(0) : Compute(1 / (1 - p));
    const T* const plus = add.defined() ? add.data<T>() : nullptr;
    if (drop_all) {
      if (plus) std::transform(plus, plus + n, result, [](T value) { return T(Compute(T(0)) + Compute(value)); });
      else std::fill_n(result, n, T(0));
      return;
    }
    const auto keep = [&](int64_t start, int64_t count, const uint32_t* words) {
      const auto kept = [&](int64_t i) {
        const Compute value = Compute(in[start + i]) * scale;
        return T(words[i] >= least ? value : Compute(0));
      };
      if (plus)
        for (int64_t i = 0; i < count; ++i) result[start + i] = T(Compute(plus[start + i]) + Compute(kept(i)));
      else
        for (int64_t i = 0; i < count; ++i) result[start + i] = kept(i);
    };
    parallel_for((n + words_per_block - 1) / words_per_block, 64, [&](int64_t begin, int64_t end) {
      alignas(64) uint32_t words[words_per_block];
      if (place.run == 0) {
        for (int64_t b = begin; b < end; ++b) {
          philox_block(key, uint64_t(b) * counters, words);
          keep(b * words_per_block, std::min<int64_t>(words_per_block, n - b * words_per_block), words);
        }
        return;
      }
      const int64_t last = std::min(n, end * words_per_block);
      for (int64_t i = begin * words_per_block; i < last;) {  // each step ends where the run or the words end
        const int64_t in_run = i % place.run, at = place.first + i / place.run * place.stride + in_run,
                      skipped = at % 4;
        const int64_t count = std::min({last - i, place.run - in_run, words_per_block - skipped});
        if (count < 32) {
          for (int64_t c = 0; c * 4 < skipped + count; ++c)
            std::ranges::copy(philox(key, uint64_t(at / 4 + c)), words + 4 * c);
        } else {
          philox_block(key, uint64_t(at / 4), words);
        }
        keep(i, count, words + skipped);
        i += count;
      }
    });
  });
}

}  // namespace lockstep::on_cpu
