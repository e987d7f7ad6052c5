// Layer norm and RMS norm along rows (rows, C), and their gradients, on the engines of rows.h. Memory bound: forward
// reads and writes each element once, backward reads x and the gradient once and writes once. Variances are taken
// around the mean in a second walk, never as E[x^2] - E[x]^2.
//
// A fused norm (of a sum) has the same bits as the sum followed by the norm, forward and backward. So norms and
// fused norms share one kernel with one walk, and every product and sum says how it rounds: the compiler would fuse
// multiplications and additions in one instance and not in another. The length of a row alone decides on the walk.
//
// Gradients of weight and bias: each block adds up the rows that it walks along, which depend only on the shape, and
// every thread keeps to its own columns; then a second kernel adds the blocks' sums in order.
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/rows.h"
#include "tensor/random.h"

namespace lockstep::on_cuda {
namespace {

/// Dropout fused with a norm: element i of the tensor is kept if its random word is at least `least`.
template <class T> struct Drops {
  PhiloxKey key = {};
  uint32_t least = 0;
  Compute<T> scale = 1;
  bool any = false, all = false;

  Drops(double p, PhiloxKey key) : key(key), any(p > 0) {
    const uint64_t threshold = uint64_t(std::ceil(p * 0x1p32));  // p == 1 exceeds every word
    all = threshold > 0xffffffffu;
    least = uint32_t(std::min<uint64_t>(threshold, 0xffffffffu));
    scale = Compute<T>(all ? 0 : 1 / (1 - p));
  }
  __device__ void keep(uint32_t word, Compute<T>& value) const {
    value = Compute<T>(T(word >= least && !all ? times(value, scale) : Compute<T>(0)));
  }
  /// Applies dropout to V values; values[j] is element first + j of the tensor.
  template <int V> __device__ void apply(int64_t first, Compute<T>* values) const {
    if constexpr (V % 4 == 0) {
#pragma unroll
      for (int j = 0; j < V; j += 4) {
        const auto words = philox(key.known(), uint64_t((first + j) / 4));
        keep(words[0], values[j]), keep(words[1], values[j + 1]);
        keep(words[2], values[j + 2]), keep(words[3], values[j + 3]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int64_t at = first + j;
        const auto words = philox(key.known(), uint64_t(at / 4));
        const uint32_t low = at & 1 ? words[1] : words[0], high = at & 1 ? words[3] : words[2];
        keep(at & 2 ? high : low, values[j]);
      }
    }
  }
};

/// The input of a norm: the rows of x.
template <class T> struct Plain {
  static constexpr int inputs = 1;
  const T* __restrict__ x;
};
/// The input of a fused norm: the rows of add + dropout(x), which are also written to `sum`.
template <class T> struct Summed {
  static constexpr int inputs = 2;
  const T* __restrict__ x, * __restrict__ add;
  T* __restrict__ sum;
  Drops<T> drops;
};

template <class Row, class T> __device__ inline Row rows_of(const RowSize& size, const Plain<T>& from) {
  return rows_of<Row>(size, {from.x}, {from.x});
}
template <class Row, class T> __device__ inline Row rows_of(const RowSize& size, const Summed<T>& from) {
  return rows_of<Row>(size, {from.x, from.add}, {from.sum});
}

/// Blocks of a kernel that a multiprocessor holds, which bounds the registers of a thread.
template <class Row, class From> constexpr int norm_blocks() {
  if (!Row::in_registers) return sizeof(typename Row::T) == 8 || From::inputs > 1 ? 1 : 2;
  return 3;
}

/// Normalises rows (centered: layer norm, else RMS norm) and saves the statistics. The mean is kept as mean + shift,
/// more precisely than one A could, and variances are taken around it.
template <bool centered, class Row, class From>
__global__ void __launch_bounds__(Row::threads, norm_blocks<Row, From>())
    norm_kernel(From from, const typename Row::T* __restrict__ weight, const typename Row::T* __restrict__ bias,
                typename Row::A eps, typename Row::T* __restrict__ out, typename Row::A* means, typename Row::A* rstds,
                RowSize size) {
  using T = typename Row::T;
  using A = typename Row::A;
  constexpr int V = Row::V;
  const A n = A(size.columns);
  Row row = rows_of<Row>(size, from);
  for (row.begin(); row.more(); row.advance()) {
    A mean = 0;
    row.read([&](int64_t i, int, typename Row::In in, typename Row::Kept kept) {
      A v[V];
      widen(in[0], v);
      if constexpr (From::inputs == 1) {
        kept[0] = in[0];
      } else {
        A more[V];
        widen(in[1], more);
        if (from.drops.any) from.drops.template apply<V>(row.start() + i, v);
#pragma unroll
        for (int j = 0; j < V; ++j) {
          kept[0].v[j] = T(plus(more[j], v[j]));
          v[j] = A(kept[0].v[j]);
        }
        *reinterpret_cast<Vector<T, V>*>(from.sum + row.start() + i) = kept[0];
      }
      if constexpr (centered) {
#pragma unroll
        for (int j = 0; j < V; ++j) mean += v[j];
      }
    });
    if constexpr (centered) mean = row.sum(mean) / n;
    A rest = 0, squares = 0;
    row.each([&](int64_t, int, typename Row::Kept kept) {
      A v[V];
      widen(kept[0], v);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const A d = v[j] - mean;
        if constexpr (centered) rest += d;
        squares = fused(d, d, squares);
      }
    });
    // The rounded mean is off by `shift`, which is removed from the variance and from the result.
    if constexpr (centered) row.sum(rest, squares);
    else squares = row.sum(squares);
    const A shift = rest / n;
    const A variance = larger_of(A(0), fused(-shift, shift, squares / n));  // NaN passes through
    const A rstd = A(1) / root_of(variance + eps);
    if (row.thread() == 0) {
      rstds[row.number()] = rstd;
      if constexpr (centered) means[row.number()] = mean + shift;
    }
    row.each([&](int64_t i, int, typename Row::Kept kept) {
      A y[V], w[V];
      widen(kept[0], y);
#pragma unroll
      for (int j = 0; j < V; ++j) y[j] = times((y[j] - mean) - shift, rstd);
      if (weight) {
        load_values<V>(weight + i, w);
        // RMS norm rounds twice, as Llama does
#pragma unroll
        for (int j = 0; j < V; ++j) y[j] = times(centered ? y[j] : A(T(y[j])), w[j]);
      }
      if (bias) {
        load_values<V>(bias + i, w);
#pragma unroll
        for (int j = 0; j < V; ++j) y[j] = plus(y[j], w[j]);
      }
      store_values<V>(out + row.start() + i, y);
    });
  }
}

/// The output of the gradient of a norm: grad_x = dx.
template <class T> struct PlainGrad {
  static constexpr int inputs = 2;
  T* __restrict__ grad_x;
};
/// The output of the gradient of a fused norm: grad_x = dx + add (add may be grad_x itself; the sum is of rounded
/// numbers), and dropped = dropout of grad_x. add and dropped may be null.
template <class T> struct SummedGrad {
  static constexpr int inputs = 3;
  const T* add;
  T *grad_x, *dropped;
  Drops<T> drops;
};

/// The layout of the 2 * size() sums of columns that a block keeps: of(k, e, t) is the place of element e of the k-th
/// vector of thread t. The sums of neighbouring threads lie side by side, 16 bytes each.
template <class A, int V> struct SumPlaces {
  static constexpr int W = V < int(16 / sizeof(A)) ? V : int(16 / sizeof(A));
  int threads;

  /// The number of sums of one kind (g y or g) that all threads keep for rows of `columns` columns.
  LOCKSTEP_HD int64_t size(int64_t columns) const {
    const int64_t vectors = (columns + V - 1) / V;
    return (vectors + threads - 1) / threads * threads * V;
  }
  LOCKSTEP_HD int64_t of(int64_t k, int e, int t) const { return ((k * (V / W) + e / W) * threads + t) * W + e % W; }
  LOCKSTEP_HD int64_t of(int64_t column) const {
    const int64_t vector = column / V;
    return of(vector / threads, int(column % V), int(vector % threads));
  }
};

/// The sums of g y and g over the rows of a thread, in its columns. A WarpRow keeps them in registers until store(),
/// a BlockRow in shared memory or, for long rows, at their final place.
template <bool centered, class Row, bool in_registers = Row::in_registers> class ColumnSums {
 public:
  using A = typename Row::A;
  static constexpr int V = Row::V;

  __device__ ColumnSums(A*, const RowSize&) {}
  __device__ void add(int k, const A* g, const A* y) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      weight_[k * V + j] = fused(g[j], y[j], weight_[k * V + j]);
      if constexpr (centered) bias_[k * V + j] += g[j];
    }
  }
  /// Adds up the block's warps in order. All threads call it.
  __device__ void store(A* to, const RowSize& size) {
    constexpr SumPlaces<A, V> places{warp};
    const int64_t all = places.size(size.columns);
    LOCKSTEP_SHARED(A, sums, [2][warp_columns<typename Row::T, Row::kept>]);
    for (int w = 0; w < Row::threads / warp; ++w) {
      if (int(threadIdx.y) == w) {
#pragma unroll
        for (int k = 0; k < Row::steps; ++k) {
#pragma unroll
          for (int j = 0; j < V; ++j) {
            const int at = int(places.of(k, j, int(threadIdx.x)));
            sums[0][at] = (w > 0 ? sums[0][at] : A(0)) + weight_[k * V + j];
            if constexpr (centered) sums[1][at] = (w > 0 ? sums[1][at] : A(0)) + bias_[k * V + j];
          }
        }
      }
      __syncthreads();
    }
    for (int64_t i = threadIdx.y * warp + threadIdx.x; i < all; i += Row::threads) {
      to[i] = sums[0][i];
      if constexpr (centered) to[all + i] = sums[1][i];
    }
  }

 private:
  A weight_[Row::steps * V] = {}, bias_[centered ? Row::steps * V : 1] = {};
};
template <bool centered, class Row> class ColumnSums<centered, Row, false> {
 public:
  using A = typename Row::A;
  static constexpr int V = Row::V;
  using Places = SumPlaces<A, V>;
  using Word = Vector<A, Places::W>;

  __device__ ColumnSums(A* at, const RowSize& size) : at_(at) {
    if (!at) return;
    all_ = places().size(size.columns);
    each([](Word* mine) { *mine = Word{}; });
  }
  __device__ void add(int k, const A* g, const A* y) {
    if (!at_) return;
#pragma unroll
    for (int j = 0; j < V; j += Places::W) {
      Word* const mine = reinterpret_cast<Word*>(at_ + places().of(k, j, int(threadIdx.x)));
      Word sum = *mine;
#pragma unroll
      for (int e = 0; e < Places::W; ++e) sum.v[e] = fused(g[j + e], y[j + e], sum.v[e]);
      *mine = sum;
      if constexpr (centered) {
        Word* const other = reinterpret_cast<Word*>(at_ + all_ + places().of(k, j, int(threadIdx.x)));
        sum = *other;
#pragma unroll
        for (int e = 0; e < Places::W; ++e) sum.v[e] += g[j + e];
        *other = sum;
      }
    }
  }
  /// Copies the sums to their final place, if they are elsewhere.
  __device__ void store(A* to, const RowSize&) {
    if (to == at_) return;
    each([&](Word* mine) { *reinterpret_cast<Word*>(to + (reinterpret_cast<A*>(mine) - at_)) = *mine; });
  }

 private:
  __device__ static Places places() { return {int(blockDim.x)}; }
  template <class Fn> __device__ void each(Fn fn) const {
    const int64_t words = (centered ? 2 : 1) * all_ / Places::W;
    for (int64_t i = threadIdx.x; i < words; i += blockDim.x) fn(reinterpret_cast<Word*>(at_) + i);
  }

  A* at_;
  int64_t all_ = 0;
};

/// With y = (x - mean) rstd and h = g w: dx = rstd (h - mean(h) - y mean(h y)). `sums`, if not null, gets the
/// contributions of each block's rows to dw = sum of g y and db = sum of g, as in SumPlaces; `shared_sums`: bytes of
/// dynamic shared memory for them while the block runs.
template <bool centered, class Row, class To>
__global__ void __launch_bounds__(Row::threads, Row::in_registers ? 2 : 1)
    norm_grad_kernel(const typename Row::T* __restrict__ grad, const typename Row::T* __restrict__ x,
                     const typename Row::A* means, const typename Row::A* rstds,
                     const typename Row::T* __restrict__ weight, To to, typename Row::A* sums, int64_t shared_sums,
                     RowSize size) {
  using T = typename Row::T;
  using A = typename Row::A;
  constexpr int V = Row::V;
  const A n = A(size.columns);
  const SumPlaces<A, V> places{Row::in_registers ? warp : int(blockDim.x)};
  A* const mine = sums ? sums + int64_t(blockIdx.x) * 2 * places.size(size.columns) : nullptr;
  A* collected = mine;
  if constexpr (!Row::in_registers) {
    LOCKSTEP_DYNAMIC_SHARED(unsigned char, shared);
    if (shared_sums > 0) collected = reinterpret_cast<A*>(shared);
  }
  ColumnSums<centered, Row> column_sums(collected, size);
  Row row = [&] {
    if constexpr (To::inputs == 2) return rows_of<Row, T, 2, 2>(size, {x, grad}, {x, grad}, shared_sums);
    else {  // without `add`, the third row is x again: nothing more is read from memory
      const T* const third = to.add ? to.add : x;
      return rows_of<Row, T, 3, 3>(size, {x, grad, third}, {x, grad, third}, shared_sums);
    }
  }();
  for (row.begin(); row.more(); row.advance()) {
    const A mean = centered ? means[row.number()] : A(0), rstd = rstds[row.number()];
    // y and h of a vector
    const auto parts = [&](int64_t i, typename Row::Kept kept, A* y, A* h) {
      widen(kept[0], y), widen(kept[1], h);
#pragma unroll
      for (int j = 0; j < V; ++j) y[j] = times(y[j] - mean, rstd);
      if (!weight) return;
      A w[V];
      load_values<V>(weight + i, w);
#pragma unroll
      for (int j = 0; j < V; ++j) h[j] = times(h[j], w[j]);
    };
    A sum_h = 0, sum_hy = 0;
    row.read([&](int64_t i, int k, typename Row::In in, typename Row::Kept kept) {
      kept[0] = in[0], kept[1] = in[1];
      A y[V], h[V], g[V];
      parts(i, kept, y, h);
      widen(kept[1], g);
      column_sums.add(k, g, y);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if constexpr (centered) sum_h += h[j];
        sum_hy = fused(h[j], y[j], sum_hy);
      }
    });
    if constexpr (centered) row.sum(sum_h, sum_hy);
    else sum_hy = row.sum(sum_hy);
    const A mean_h = sum_h / n, mean_hy = sum_hy / n;
    row.each([&](int64_t i, int, typename Row::Kept kept) {
      A y[V], dx[V];
      parts(i, kept, y, dx);
#pragma unroll
      for (int j = 0; j < V; ++j) dx[j] = times(fused(-y[j], mean_hy, dx[j] - mean_h), rstd);
      const int64_t at = row.start() + i;
      if constexpr (To::inputs == 3) {
        if (to.add) {
          A more[V];
          widen(kept[2], more);
#pragma unroll
          for (int j = 0; j < V; ++j) dx[j] = plus(more[j], A(T(dx[j])));
        }
      }
      store_values<V>(to.grad_x + at, dx);
      if constexpr (To::inputs == 3) {
        if (!to.dropped) return;
#pragma unroll
        for (int j = 0; j < V; ++j) dx[j] = A(T(dx[j]));
        to.drops.template apply<V>(at, dx);
        store_values<V>(to.dropped + at, dx);
      }
    });
  }
  if (mine) column_sums.store(mine, size);
}

/// to[c] = sum over blocks of their sums for column c; a block has 32 columns, and sixteen threads share the sums of
/// each column.
template <class T, int V>
__global__ void __launch_bounds__(512)
    add_groups_kernel(const Compute<T>* __restrict__ sums, SumPlaces<Compute<T>, V> places, int64_t groups, int64_t n,
                      T* grad_weight, T* grad_bias) {
  LOCKSTEP_SHARED(double, part, [16][warp]);
  const int64_t column = int64_t(blockIdx.x) * warp + threadIdx.x, all = places.size(n);
  const bool bias = blockIdx.y == 1;
  double sum = 0;
  if (column < n) {
    const Compute<T>* const from = sums + bias * all + places.of(column);
#pragma unroll 8
    for (int64_t g = threadIdx.y; g < groups; g += 16) sum += double(from[g * 2 * all]);
  }
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= n) return;
  for (int i = 1; i < 16; ++i) sum += part[i][threadIdx.x];
  T* const to = bias ? grad_bias : grad_weight;
  if (to) to[column] = T(Compute<T>(sum));
}

/// Returns x, or a copy if its rows could be read in words of 16 bytes but its address is not a multiple of 16: how a
/// sum rounds must not depend on the address of a tensor.
Tensor aligned(const Tensor& x) {
  if (!x.defined() || x.size(-1) * size_of(x.dtype()) % 16 != 0) return x;
  return reinterpret_cast<uintptr_t>(x.raw_data()) % 16 == 0 ? x : x.clone();
}

/// Launches norm_kernel(). `places`: the addresses of the tensors that are read or written by rows; with_rows() checks
/// their alignment.
template <bool centered, class T, class From>
void norm(const char* op, const From& from, Pointers places, const Tensor& weight, const Tensor& bias, double eps,
          Tensor& out, Tensor* mean, Tensor& rstd) {
  using A = Compute<T>;
  const int64_t rows = out.size(0), n = out.size(1);
  const T *const w = data_or_null<T>(weight), *const b = data_or_null<T>(bias);
  with_rows<T, From::inputs, 1>(n, n, places, [&]<class Row> {
    const RowLaunch how = launch_of<Row>({rows, n, n}, norm_blocks<Row, From>());
    cuda::launch({op, how.grid, how.block, how.shared}, norm_kernel<centered, Row, From>, from, w, b, A(eps),
                 out.data<T>(), mean ? mean->data<A>() : nullptr, rstd.data<A>(), how.size);
  });
}

template <bool centered, class T, class To>
void norm_grad(const char* op, const Tensor& grad, const Tensor& x, const Tensor* mean, const Tensor& rstd,
               const Tensor& weight, const To& to, Pointers places, Tensor& grad_weight, Tensor* grad_bias) {
  using A = Compute<T>;
  const int64_t rows = x.size(0), n = x.size(1);
  const T* const w = data_or_null<T>(weight);
  T *const dw = data_or_null<T>(grad_weight), *const db = grad_bias ? data_or_null<T>(*grad_bias) : nullptr;
  const bool wanted = dw || db;
  with_rows<T, To::inputs, To::inputs>(n, n, places, [&]<class Row> {
    constexpr int V = Row::V;
    // At least 16 rows per block, or 8 per warp. At most two blocks for each of an H200's 132 multiprocessors, so that
    // their sums are a small part of what the kernel moves. Depends only on the shape.
    const int64_t rows_of_block = Row::in_registers ? 4 * 8 : 16;
    const int64_t blocks = std::min<int64_t>((rows + rows_of_block - 1) / rows_of_block, 264);
    const SumPlaces<A, V> at{Row::in_registers ? warp : threads_for((n + V - 1) / V, Row::threads)};
    const int64_t all = 2 * at.size(n) * int64_t(sizeof(A));
    const cuda::Scratch sums(wanted ? size_t(blocks * all) : 0);
    const int64_t shared_sums = wanted && !Row::in_registers && all <= half_of_shared() ? all : 0;
    RowLaunch how = launch_of<Row>({rows, n, n}, 2, shared_sums);
    how.grid = dim3(unsigned(blocks));
    cuda::launch({op, how.grid, how.block, how.shared}, norm_grad_kernel<centered, Row, To>, grad.data<T>(),
                 x.data<T>(), mean ? mean->data<A>() : nullptr, rstd.data<A>(), w, to, sums.as<A>(), shared_sums,
                 how.size);
    if (!wanted) return;
    cuda::launch({op, dim3(unsigned((n + warp - 1) / warp), db ? 2 : 1), dim3(warp, 16)}, add_groups_kernel<T, V>,
                 sums.as<A>(), at, blocks, n, dw, db);
  });
}

}  // namespace

void layer_norm(const Tensor& in, const Tensor& scale, const Tensor& shift, double eps, Tensor& out, Tensor& mean,
                Tensor& rstd) {
  const Tensor x = aligned(in), weight = aligned(scale), bias = aligned(shift);
  for_floats("layer_norm", x, [&]<class T> {
    const Plain<T> from{x.data<T>()};
    norm<true, T>("layer_norm", from, {from.x, out.raw_data(), data_or_null<T>(weight), data_or_null<T>(bias)}, weight,
                  bias, eps, out, &mean, rstd);
  });
}

void layer_norm_grad(const Tensor& upstream, const Tensor& in, const Tensor& mean, const Tensor& rstd,
                     const Tensor& scale, Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias) {
  const Tensor grad = aligned(upstream), x = aligned(in), weight = aligned(scale);
  for_floats("layer_norm_grad", x, [&]<class T> {
    const PlainGrad<T> to{grad_x.data<T>()};
    norm_grad<true, T>("layer_norm_grad", grad, x, &mean, rstd, weight, to,
                       {grad.raw_data(), x.raw_data(), to.grad_x, data_or_null<T>(weight)}, grad_weight, &grad_bias);
  });
}

void rms_norm(const Tensor& in, const Tensor& scale, double eps, Tensor& out, Tensor& rstd) {
  const Tensor x = aligned(in), weight = aligned(scale);
  for_floats("rms_norm", x, [&]<class T> {
    const Plain<T> from{x.data<T>()};
    norm<false, T>("rms_norm", from, {from.x, out.raw_data(), data_or_null<T>(weight)}, weight, {}, eps, out, nullptr,
                   rstd);
  });
}

void rms_norm_grad(const Tensor& upstream, const Tensor& in, const Tensor& rstd, const Tensor& scale, Tensor& grad_x,
                   Tensor& grad_weight) {
  const Tensor grad = aligned(upstream), x = aligned(in), weight = aligned(scale);
  for_floats("rms_norm_grad", x, [&]<class T> {
    const PlainGrad<T> to{grad_x.data<T>()};
    norm_grad<false, T>("rms_norm_grad", grad, x, nullptr, rstd, weight, to,
                        {grad.raw_data(), x.raw_data(), to.grad_x, data_or_null<T>(weight)}, grad_weight, nullptr);
  });
}

void add_norm(const Tensor& in, const Tensor& residual, const Tensor& scale, const Tensor& shift,
              const AddNormArgs& args, Tensor& sum, Tensor& out, Tensor& mean, Tensor& rstd) {
  const Tensor x = aligned(in), add = aligned(residual), weight = aligned(scale), bias = aligned(shift);
  for_floats("add_norm", x, [&]<class T> {
    const Summed<T> from{x.data<T>(), add.data<T>(), sum.data<T>(), Drops<T>(args.p, args.key)};
    const Pointers places = {
        from.x, from.add, from.sum, out.raw_data(), data_or_null<T>(weight), data_or_null<T>(bias)};
    if (args.centered) norm<true, T>("add_norm", from, places, weight, bias, args.eps, out, &mean, rstd);
    else norm<false, T>("add_norm", from, places, weight, {}, args.eps, out, nullptr, rstd);
  });
}

void add_norm_grad(const Tensor& upstream, const Tensor& more, const Tensor& in, const Tensor& mean, const Tensor& rstd,
                   const Tensor& scale, const AddNormArgs& args, Tensor& grad_x, Tensor& dropped, Tensor& grad_weight,
                   Tensor& grad_bias) {
  const Tensor grad = aligned(upstream), add = aligned(more), sum = aligned(in), weight = aligned(scale);
  Tensor made = aligned(grad_x);
  for_floats("add_norm_grad", sum, [&]<class T> {
    const SummedGrad<T> to{data_or_null<T>(add), made.data<T>(), data_or_null<T>(dropped), Drops<T>(args.p, args.key)};
    const Pointers places = {grad.raw_data(), sum.raw_data(), to.add, to.grad_x, to.dropped, data_or_null<T>(weight)};
    if (args.centered)
      norm_grad<true, T>("add_norm_grad", grad, sum, &mean, rstd, weight, to, places, grad_weight, &grad_bias);
    else norm_grad<false, T>("add_norm_grad", grad, sum, nullptr, rstd, weight, to, places, grad_weight, nullptr);
  });
  if (made.raw_data() != grad_x.raw_data()) grad_x.copy_(made);
}

}  // namespace lockstep::on_cuda
