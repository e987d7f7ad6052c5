// arange and random numbers, with the same bits as on the CPU (random_math.h). A thread turns the four words of one
// Philox counter into two or four elements. Bound by the integer multiplications of the generator, or by memory if
// elements are wide.
#include <algorithm>

#include "tensor/backend.h"
#include "tensor/cuda/capture.h"
#include "tensor/cuda/streams.h"
#include "tensor/cuda/vector.h"
#include "tensor/kernels.h"
#include "tensor/random_math.h"

namespace lockstep::on_cuda {

using namespace random_math;

namespace {

constexpr int threads = 256;

struct Words {
  uint32_t w[4];
};
__device__ inline Words words_of(PhiloxKey key, int64_t counter) {
  const auto words = philox(key, uint64_t(counter));
  return {{words[0], words[1], words[2], words[3]}};
}

template <class T, int each> Access access_of(const T* p) { return is_aligned(p, each) ? Access::run : Access::apart; }

/// Fills `out`: make() turns the four random words of counter i into elements i * each to i * each + each - 1.
template <int each, class T, class Make>
__global__ void __launch_bounds__(threads) fill_kernel(Make make, PhiloxKey given, T* out, int64_t n, Access access) {
  const PhiloxKey key = given.known();
  const int64_t counters = (n + each - 1) / each;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < counters; i += int64_t(gridDim.x) * blockDim.x) {
    const Words words = words_of(key, i);
    Vector<T, each> values;
    make(words.w, values.v);
    const int64_t left = n - i * each;
    store_vector<each>(out + i * each, values, access, 1, left < each ? int(left) : each);
  }
}

template <int each, class T, class Make>
void fill_random(const char* op, Tensor& out, PhiloxKey key, const Make& make) {
  T* data = out.data<T>();
  const int64_t n = out.numel();
  cuda::launch({op, dim3(cuda::blocks_for(n, threads, each)), dim3(threads)}, fill_kernel<each, T, Make>, make, key,
               data, n, access_of<T, each>(data));
}

template <class T> struct Uniform {
  Compute<T> base, width, greatest;
  __device__ void operator()(const uint32_t* w, T* values) const {
    if constexpr (std::is_same_v<T, double>) {
      for (int i = 0; i < 2; ++i) values[i] = scaled(unit(w[2 * i], w[2 * i + 1]), base, width, greatest);
    } else {
      for (int i = 0; i < 4; ++i) values[i] = T(scaled(unit(w[i]), base, width, greatest));
    }
  }
};

template <class T> struct Normal {
  Compute<T> mean, deviation;
  __device__ void operator()(const uint32_t* w, T* values) const {
    if constexpr (std::is_same_v<T, double>) {
      const Pair<double> pair = normals_of(w[0], w[1], w[2], w[3], mean, deviation);
      values[0] = pair.first, values[1] = pair.second;
    } else {
      for (int i = 0; i < 4; i += 2) {
        const Pair<float> pair = normals_of(w[i], w[i + 1], mean, deviation);
        values[i] = T(pair.first), values[i + 1] = T(pair.second);
      }
    }
  }
};

template <class T> struct UniformInteger {
  int64_t low;
  uint64_t range;
  __device__ void operator()(const uint32_t* w, T* values) const {
    for (int i = 0; i < 2; ++i) values[i] = convert<T>(uniform_integer(w[2 * i], w[2 * i + 1], low, range));
  }
};

template <class T, class C> __global__ void __launch_bounds__(threads) iota_kernel(T* out, int64_t n, C start, C step) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x)
    out[i] = convert<T>(start + C(i) * step);
}

/// Dropout: element i is kept if its random word is at least `least`. A non-null `add` is added to the rounded result.
template <class T>
__global__ void __launch_bounds__(threads)
    dropout_kernel(const T* x, const T* add, T* out, int64_t n, PhiloxKey given, uint32_t least, Compute<T> scale,
                   bool drop_all, Access access) {
  const PhiloxKey key = given.known();
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i * 4 < n; i += int64_t(gridDim.x) * blockDim.x) {
    const int count = n - i * 4 < 4 ? int(n - i * 4) : 4;
    Vector<T, 4> values = load_vector<4>(x + i * 4, access, 1, count);
    const Words words = words_of(key, i);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      values.v[j] = T(words.w[j] >= least && !drop_all ? Compute<T>(values.v[j]) * scale : Compute<T>(0));
    if (add) {
      const Vector<T, 4> more = load_vector<4>(add + i * 4, access, 1, count);
#pragma unroll
      for (int j = 0; j < 4; ++j) values.v[j] = T(Compute<T>(more.v[j]) + Compute<T>(values.v[j]));
    }
    store_vector<4>(out + i * 4, values, access, 1, count);
  }
}

/// Dropout of a part of a tensor. An element gets the random word that belongs to its index in the whole tensor.
template <class T>
__global__ void __launch_bounds__(threads)
    dropout_part_kernel(const T* x, const T* add, T* out, int64_t n, PhiloxKey given, Region place, uint32_t least,
                        Compute<T> scale, bool drop_all) {
  const PhiloxKey key = given.known();
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t run = i / place.run, at = place.first + run * place.stride + (i - run * place.run);
    const Words words = words_of(key, at / 4);
    const uint32_t low = at & 1 ? words.w[1] : words.w[0], high = at & 1 ? words.w[3] : words.w[2];
    const T kept = T((at & 2 ? high : low) >= least && !drop_all ? Compute<T>(load(x + i)) * scale : Compute<T>(0));
    out[i] = add ? T(Compute<T>(load(add + i)) + Compute<T>(kept)) : kept;
  }
}

}  // namespace

void iota(Tensor& out, Scalar start, Scalar step) {
  dispatch_all(out.dtype(), "iota", [&]<class T> {
    using C = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;  // integers wrap around
    cuda::launch({"iota", dim3(cuda::blocks_for(out.numel(), threads)), dim3(threads)}, iota_kernel<T, C>,
                 out.data<T>(), out.numel(), start.to<C>(), step.to<C>());
  });
}

void uniform(Tensor& out, double low, double high, PhiloxKey key) {
  dispatch<float, double, Half, BFloat16>(out.dtype(), "uniform", [&]<class T> {
    using C = Compute<T>;
    fill_random<sizeof(T) == 8 ? 2 : 4, T>("uniform", out, key,
                                           Uniform<T>{C(low), C(high - low), max_below<T>(low, high)});
  });
}

void normal(Tensor& out, double mean, double deviation, PhiloxKey key) {
  dispatch<float, double, Half, BFloat16>(out.dtype(), "normal", [&]<class T> {
    fill_random<sizeof(T) == 8 ? 2 : 4, T>("normal", out, key, Normal<T>{Compute<T>(mean), Compute<T>(deviation)});
  });
}

void randint(Tensor& out, int64_t low, int64_t high, PhiloxKey key) {
  dispatch<float, double, Half, BFloat16, int64_t, int32_t, int8_t, uint8_t>(out.dtype(), "randint", [&]<class T> {
    fill_random<2, T>("randint", out, key, UniformInteger<T>{low, uint64_t(high) - uint64_t(low)});
  });
}

void dropout(const Tensor& x, double p, PhiloxKey key, const Region& place, const Tensor& add, Tensor& out) {
  const int64_t n = out.numel();
  const uint64_t threshold = uint64_t(std::ceil(p * 0x1p32));  // p == 1 exceeds every word
  const bool drop_all = threshold > 0xffffffffu;
  dispatch<float, double, Half, BFloat16>(out.dtype(), "dropout", [&]<class T> {
    const T *from = x.data<T>(), *plus = add.defined() ? add.data<T>() : nullptr;
    T* to = out.data<T>();
    const uint32_t least = uint32_t(std::min<uint64_t>(threshold, 0xffffffffu));
    const auto scale = Compute<T>(drop_all ? 0 : 1 / (1 - p));
    if (place.run > 0) {
      cuda::launch({"dropout", dim3(cuda::blocks_for(n, threads)), dim3(threads)}, dropout_part_kernel<T>, from, plus,
                   to, n, key, place, least, scale, drop_all);
      return;
    }
    const bool aligned = is_aligned(from, 4) && is_aligned(to, 4) && (!plus || is_aligned(plus, 4));
    cuda::launch({"dropout", dim3(cuda::blocks_for(n, threads, 4)), dim3(threads)}, dropout_kernel<T>, from, plus, to,
                 n, key, least, scale, drop_all, aligned ? Access::run : Access::apart);
  });
}

}  // namespace lockstep::on_cuda

namespace lockstep::cuda {
namespace {

struct KeyBlock {
  RecordedKey keys[keys_at_once];
};

__global__ void set_keys_kernel(RecordedKey* to, KeyBlock from, int count) {
  if (int(threadIdx.x) < count) to[threadIdx.x] = from.keys[threadIdx.x];
}

}  // namespace

/// Stores keys at `to` on the device. They are passed as kernel parameters, so the caller may change or free `keys` as
/// soon as this function returns.
void set_keys(RecordedKey* to, const RecordedKey* keys, int count, int device) {
  select_device(device);
  KeyBlock block{};
  std::copy(keys, keys + count, block.keys);
  launch({"set_keys", dim3(1), dim3(keys_at_once)}, set_keys_kernel, to, block, count);
}

}  // namespace lockstep::cuda
