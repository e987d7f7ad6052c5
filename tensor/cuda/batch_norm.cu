// Batch norm of x (N, C, S), with statistics per channel. Memory bound: training reads x twice (for the statistics and
// for the result), backward reads the gradient and x twice. There are two layouts: planes (the S elements of a channel
// are contiguous; `inner` is S) and columns (channels last, or plain (N, C); `inner` is 1).
//
// The elements of a channel are divided into `parts` parts, and the number of parts depends only on the shape. A block
// (planes) or a column of threads (columns) sums one part. A last kernel adds the parts in order, in f64.
#include "tensor/cuda/nest.h"
#include "tensor/cuda/warp.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256, lanes = threads / warp;  // columns: a block has 32 channels with 8 threads each

/// Count, mean and sum of squared deviations of some elements. add() merges two groups of elements as in Chan, Golub &
/// LeVeque (1979), without a difference of large sums.
template <class A> struct Moments {
  A count, mean, deviation;

  __device__ void add(const Moments& other) {
    if (other.count == 0) return;
    const A sum = count + other.count, delta = other.mean - mean, part = other.count / sum;
    mean += delta * part;
    deviation += other.deviation + delta * delta * count * part;
    count = sum;
  }
  __device__ Moments of_lane(int lane) const {
    return {__shfl_sync(full_warp, count, lane), __shfl_sync(full_warp, mean, lane),
            __shfl_sync(full_warp, deviation, lane)};
  }
  /// The moments of n values.
  __device__ static Moments of(const A* values, int n) {
    A sum = 0;
    for (int i = 0; i < n; ++i) sum += values[i];
    Moments m{A(n), sum / A(n), 0};
    for (int i = 0; i < n; ++i) m.deviation += (values[i] - m.mean) * (values[i] - m.mean);
    return m;
  }
};

/// The two sums that the gradient needs: of g * y and of g, for the incoming gradient g and y = (x - mean) * rstd.
template <class A> struct Sums {
  A gy, g;
  __device__ void add(const Sums& other) {
    gy += other.gy;
    g += other.g;
  }
  __device__ Sums of_lane(int lane) const {
    return {__shfl_sync(full_warp, gy, lane), __shfl_sync(full_warp, g, lane)};
  }
};

/// The layout of x, and the number of parts into which each channel is divided.
struct Geometry {
  int64_t images, channels, plane, inner, parts;
  bool columns, narrow;
  Divider inner_by, channels_by;

  explicit Geometry(const Tensor& x)
      : images(x.size(0)),
        channels(x.size(1)),
        plane(x.size(2)),
        // (N, C, 1) in row-major order fits both layouts.
        columns(channels > 0 && (x.strides()[1] == 1 || channels == 1) && (plane == 1 || x.strides()[2] == channels)) {
    inner = columns ? 1 : plane;
    // Divides channels to get up to about 1024 blocks, but no part has fewer than 4096 elements (columns: 256 rows).
    const int64_t rows = images * plane,
                  wanted = 1024 / std::max<int64_t>(1, columns ? (channels + warp - 1) / warp : channels);
    parts = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, rows / (columns ? 256 : 4096)));
    narrow = count() < max_narrow;
    if (narrow && count() > 0) inner_by = Divider(uint32_t(inner)), channels_by = Divider(uint32_t(channels));
  }
  LOCKSTEP_HD int64_t rows() const { return images * plane; }
  LOCKSTEP_HD int64_t count() const { return rows() * channels; }
  /// The grid of the summing kernels. x: channels (layout planes) or groups of 32 channels (layout columns); y: parts.
  dim3 grid() const {
    return dim3(cuda::blocks_of("batch_norm", columns ? (channels + warp - 1) / warp : channels), unsigned(parts));
  }
};

/// Visits the elements that this thread sums, within the part of a channel that its block sums: calls fn(places, n)
/// with the offsets in x of n <= 8 of them at a time. Returns the channel; -1 if this thread has none. Element r of a
/// channel is element r % plane of image r / plane.
template <class Fn> __device__ inline int64_t each_place(const Geometry& at, Fn fn) {
  constexpr int limit = 8;
  const int64_t rows = at.rows(), begin = rows * blockIdx.y / at.parts, end = rows * (blockIdx.y + 1) / at.parts;
  const int64_t c = at.columns ? int64_t(blockIdx.x) * warp + threadIdx.x % warp : blockIdx.x;
  if (c >= at.channels) return -1;
  const int64_t step = at.columns ? lanes : threads;
  int64_t places[limit];
  for (int64_t r = begin + (at.columns ? threadIdx.x / warp : threadIdx.x); r < end;) {
    int n = 0;
#pragma unroll
    for (int k = 0; k < limit; ++k) {
      if (r < end) {
        const int64_t image = at.columns ? 0 : at.narrow ? int64_t(at.inner_by.divide(uint32_t(r))) : r / at.plane;
        places[k] = at.columns ? r * at.channels + c : (image * (at.channels - 1) + c) * at.plane + r;
        n = k + 1;
      }
      r += step;
    }
    fn(places, n);
  }
  return c;
}

/// Adds up `mine` of all threads that work on the same part of a channel. Stores the sum in pieces[part, channel].
template <class S> __device__ inline void store_piece(const Geometry& at, S mine, S* pieces) {
  LOCKSTEP_SHARED(S, shared, [threads]);
  if (!at.columns) {  // one channel per block: join each warp as a tree, then the warps in order
    for (int step = warp / 2; step > 0; step /= 2) {
      // Lane i adds the value of lane i + step. The results of the upper lanes are not used.
      mine.add(mine.of_lane((threadIdx.x % warp + step) % warp));
    }
  }
  shared[threadIdx.x] = mine;
  __syncthreads();
  const int64_t c = at.columns ? int64_t(blockIdx.x) * warp + threadIdx.x : blockIdx.x;
  if (threadIdx.x >= (at.columns ? warp : 1) || c >= at.channels) return;
  for (int i = 1; i < lanes; ++i) mine.add(shared[i * warp + threadIdx.x]);
  pieces[blockIdx.y * at.channels + c] = mine;
}

template <class T>
__global__ void __launch_bounds__(threads) moments_kernel(const T* x, Geometry at, Moments<Compute<T>>* pieces) {
  using A = Compute<T>;
  Moments<A> mine{};
  each_place(at, [&](const int64_t* places, int n) {
    A values[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (k < n) values[k] = load(x + places[k]);
    }
    mine.add(Moments<A>::of(values, n));
  });
  store_piece(at, mine, pieces);
}

/// Merges the moments of the parts of each channel and stores the channel's statistics.
template <class A>
__global__ void __launch_bounds__(threads)
    join_moments_kernel(const Moments<A>* pieces, Geometry at, double eps, A* mean, A* rstd, A* var) {
  const int64_t c = int64_t(blockIdx.x) * threads + threadIdx.x;
  if (c >= at.channels) return;
  Moments<double> all{};
  for (int64_t part = 0; part < at.parts; ++part) {
    const Moments<A> piece = pieces[part * at.channels + c];
    all.add({double(piece.count), double(piece.mean), double(piece.deviation)});
  }
  const double variance = all.deviation / all.count;
  mean[c] = A(all.mean);
  var[c] = A(variance);
  rstd[c] = A(1 / ::sqrt(variance + eps));
}

/// Calls fn(offset, channel of the first element) for runs of V elements. V divides S (planes layout) or C.
template <int V, class Fn> __device__ inline void each_run(const Geometry& at, Fn fn) {
  const int64_t count = at.count();
  for (int64_t i = (int64_t(blockIdx.x) * threads + threadIdx.x) * V; i < count;
       i += int64_t(gridDim.x) * threads * V) {
    if (at.narrow) {
      const uint32_t plane = at.inner_by.divide(uint32_t(i));
      fn(i, int64_t(plane - at.channels_by.divide(plane) * at.channels_by.by));
    } else {
      fn(i, i / at.inner % at.channels);
    }
  }
}

/// out = (x - mean) * rstd * weight + bias in every channel.
template <class T, int V>
__global__ void __launch_bounds__(threads)
    batch_norm_kernel(const T* x, Geometry at, const Compute<T>* mean, const Compute<T>* rstd, const T* weight,
                      const T* bias, T* out) {
  using A = Compute<T>;
  each_run<V>(at, [&](int64_t i, int64_t first) {
    A y[V];
    load_values<V>(x + i, y);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int64_t c = at.columns ? first + j : first;
      const A scale = weight ? load(weight + c) * rstd[c] : rstd[c];
      y[j] = (y[j] - mean[c]) * scale + (bias ? load(bias + c) : A(0));
    }
    store_values<V>(out + i, y);
  });
}

/// For each part of a channel, sums the gradient g and g * (x - mean) * rstd: the gradients of bias and weight.
template <class T>
__global__ void __launch_bounds__(threads)
    grad_sums_kernel(const T* grad, const T* x, Geometry at, const Compute<T>* mean, const Compute<T>* rstd,
                     Sums<Compute<T>>* pieces) {
  using A = Compute<T>;
  Sums<A> mine{};
  const int64_t own = at.columns ? int64_t(blockIdx.x) * warp + threadIdx.x % warp : blockIdx.x;
  const A m = own < at.channels ? mean[own] : A(0), s = own < at.channels ? rstd[own] : A(0);
  each_place(at, [&](const int64_t* places, int n) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (k >= n) continue;
      const A g = load(grad + places[k]);
      mine.g += g;
      mine.gy += g * ((load(x + places[k]) - m) * s);
    }
  });
  store_piece(at, mine, pieces);
}

/// Adds the gradient sums of the parts of each channel.
template <class T>
__global__ void __launch_bounds__(threads) join_sums_kernel(const Sums<Compute<T>>* pieces, Geometry at,
                                                            Sums<Compute<T>>* sums, T* grad_weight, T* grad_bias) {
  using A = Compute<T>;
  const int64_t c = int64_t(blockIdx.x) * threads + threadIdx.x;
  if (c >= at.channels) return;
  Sums<double> all{};
  for (int64_t part = 0; part < at.parts; ++part)
    all.add({double(pieces[part * at.channels + c].gy), double(pieces[part * at.channels + c].g)});
  sums[c] = {A(all.gy), A(all.g)};
  if (grad_weight) store(grad_weight + c, A(all.gy));
  if (grad_bias) store(grad_bias + c, A(all.g));
}

/// grad_x = weight * rstd * (g - share * (grad_bias + y * grad_weight)) with g = grad and y = (x - mean) * rstd.
/// `share` is 1 / count in training, else 0.
template <class T, int V>
__global__ void __launch_bounds__(threads)
    batch_norm_grad_kernel(const T* grad, const T* x, Geometry at, const Compute<T>* mean, const Compute<T>* rstd,
                           const T* weight, const Sums<Compute<T>>* sums, Compute<T> share, T* grad_x) {
  using A = Compute<T>;
  each_run<V>(at, [&](int64_t i, int64_t first) {
    A g[V], v[V];
    load_values<V>(grad + i, g);
    load_values<V>(x + i, v);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int64_t c = at.columns ? first + j : first;
      const A s = rstd[c], scale = weight ? load(weight + c) * s : s, y = (v[j] - mean[c]) * s;
      if (share != 0) g[j] -= (sums[c].g + y * sums[c].gy) * share;
      g[j] *= scale;
    }
    store_values<V>(grad_x + i, g);
  });
}

/// Calls fn.template operator()<V>(grid) for the elementwise kernels. V is the number of elements in 16 bytes, or 1 if
/// a pointer or the size of a row is not a multiple of 16 bytes.
template <class T, class Fn> void with_runs(const Geometry& at, std::initializer_list<const void*> pointers, Fn&& fn) {
  constexpr int wide = sizeof(T) == 8 ? 1 : int(16 / sizeof(T));
  bool aligned = (at.columns ? at.channels : at.plane) % wide == 0;
  for (const void* p : pointers) aligned &= reinterpret_cast<uintptr_t>(p) % 16 == 0;
  if (aligned) fn.template operator()<wide>(dim3(cuda::blocks_for(at.count(), threads, wide)));
  else fn.template operator()<1>(dim3(cuda::blocks_for(at.count(), threads)));
}

unsigned channel_blocks(const Geometry& at) { return unsigned((at.channels + threads - 1) / threads); }

}  // namespace

void batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool training, Tensor& mean,
                Tensor& rstd, Tensor& var, Tensor& out) {
  const Geometry at(x);
  for_floats("batch_norm", x, [&]<class T> {
    using A = Compute<T>;
    const T* const source = static_cast<const T*>(x.raw_data());
    T* const result = static_cast<T*>(out.raw_data());
    if (training) {
      const cuda::Scratch pieces(size_t(at.parts * at.channels) * sizeof(Moments<A>));
      cuda::launch({"batch_norm", at.grid(), dim3(threads)}, moments_kernel<T>, source, at, pieces.as<Moments<A>>());
      cuda::launch({"batch_norm", dim3(channel_blocks(at)), dim3(threads)}, join_moments_kernel<A>,
                   pieces.as<Moments<A>>(), at, eps, mean.data<A>(), rstd.data<A>(), var.data<A>());
    }
    with_runs<T>(at, {source, result}, [&]<int V>(dim3 grid) {
      cuda::launch({"batch_norm", grid, dim3(threads)}, batch_norm_kernel<T, V>, source, at, mean.data<A>(),
                   rstd.data<A>(), data_or_null<T>(weight), data_or_null<T>(bias), result);
    });
  });
}

void batch_norm_grad(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                     bool training, Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias) {
  const Geometry at(x);
  for_floats("batch_norm_grad", x, [&]<class T> {
    using A = Compute<T>;
    const T *const g = static_cast<const T*>(grad.raw_data()), *const source = static_cast<const T*>(x.raw_data());
    T* const result = static_cast<T*>(grad_x.raw_data());
    const cuda::Scratch pieces(size_t(at.parts * at.channels) * sizeof(Sums<A>)),
        sums(size_t(at.channels) * sizeof(Sums<A>));
    cuda::launch({"batch_norm_grad", at.grid(), dim3(threads)}, grad_sums_kernel<T>, g, source, at, mean.data<A>(),
                 rstd.data<A>(), pieces.as<Sums<A>>());
    cuda::launch({"batch_norm_grad", dim3(channel_blocks(at)), dim3(threads)}, join_sums_kernel<T>,
                 pieces.as<Sums<A>>(), at, sums.as<Sums<A>>(), data_or_null<T>(grad_weight),
                 data_or_null<T>(grad_bias));
    with_runs<T>(at, {g, source, result}, [&]<int V>(dim3 grid) {
      cuda::launch({"batch_norm_grad", grid, dim3(threads)}, batch_norm_grad_kernel<T, V>, g, source, at,
                   mean.data<A>(), rstd.data<A>(), data_or_null<T>(weight), sums.as<Sums<A>>(),
                   training ? A(1) / A(at.rows()) : A(0), result);
    });
  });
}

}  // namespace lockstep::on_cuda
