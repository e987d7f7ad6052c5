// Layer norm and RMS norm along rows (rows, C), and their gradients. Memory bound: the forward pass reads and writes
// each element once, the backward pass reads x and the gradient once. That holds for rows that stay in registers: up to
// 8192 elements, 2048 if unaligned, 1024 in f64; longer rows are read again. Gradients of weight and bias: each group
// of threads sums the rows that it walks along, which depend only on the shape, and every thread keeps to its own
// columns; then a second kernel adds the groups' sums in order.
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/warp.h"
#include "tensor/random.h"

namespace lockstep::on_cuda {
namespace {

// Operations that the compiler must not contract with their neighbours: dropout and the residual addition have to round
// exactly as the separate kernels do.
__device__ inline float rounded_sum(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double rounded_sum(double a, double b) { return __dadd_rn(a, b); }
__device__ inline float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double rounded_product(double a, double b) { return __dmul_rn(a, b); }

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
    value = Compute<T>(T(word >= least && !all ? rounded_product(value, scale) : Compute<T>(0)));
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

/// A row computed as add + dropout(x), which is also written to `sum`.
template <class T> struct Summed {
  const T *x, *add;
  T* sum;
  Drops<T> drops;
};

/// Normalises rows (centered: layer norm, else RMS norm) and saves the statistics. The mean is kept as mean + shift,
/// more precisely than one A could, and variances are taken around it. `From` is a pointer to the rows, or a Summed:
/// then each thread first writes the sums that it goes on to read.
template <bool centered, class T, class From, int threads, int V, bool held>
__global__ void __launch_bounds__(threads == warp ? 128 : threads)
    norm_kernel(From from, const T* weight, const T* bias, Compute<T> eps, T* out, Compute<T>* means, Compute<T>* rstds,
                int64_t rows, int64_t n) {
  using A = Compute<T>;
  for (int64_t r = RowBlocks<threads>::first(); r < rows; r += RowBlocks<threads>::step()) {
    const T* x;
    if constexpr (std::is_pointer_v<From>) {
      x = from;
    } else {
      for (int64_t i = int64_t(threadIdx.x) * V; i < n; i += int64_t(threads) * V) {
        A v[V], more[V];
        load_values<V>(from.x + r * n + i, v);
        if (from.drops.any) from.drops.template apply<V>(r * n + i, v);
        load_values<V>(from.add + r * n + i, more);
        for (int j = 0; j < V; ++j) v[j] = rounded_sum(more[j], v[j]);
        store_values<V>(from.sum + r * n + i, v);
      }
      x = from.sum;
    }
    Row<T, threads, V, held> row(x + r * n, n);
    A mean = 0;
    if constexpr (centered) {
      A sum = 0;
      row.each([&](int64_t, const A* v) {
        for (int j = 0; j < V; ++j) sum += v[j];
      });
      mean = group_sum<threads>(sum) / A(n);
    }
    A rest = 0, squares = 0;
    row.each([&](int64_t, const A* v) {
      for (int j = 0; j < V; ++j) {
        const A d = v[j] - mean;
        rest += d;
        squares += d * d;
      }
    });
    // The rounded mean is off by `shift`, which is removed from the variance and from the result.
    const A shift = centered ? group_sum<threads>(rest) / A(n) : A(0);
    const A variance = larger_of(A(0), group_sum<threads>(squares) / A(n) - shift * shift);  // NaN passes through
    const A rstd = A(1) / root_of(variance + eps);
    if (threadIdx.x == 0) {
      rstds[r] = rstd;
      if constexpr (centered) means[r] = mean + shift;
    }
    row.each([&](int64_t i, const A* v) {
      A y[V], w[V];
      for (int j = 0; j < V; ++j) y[j] = ((v[j] - mean) - shift) * rstd;
      if (weight) {
        load_values<V>(weight + i, w);
        // RMS norm rounds twice, as Llama does
        for (int j = 0; j < V; ++j) y[j] = (centered ? y[j] : A(T(y[j]))) * w[j];
      }
      if (bias) {
        load_values<V>(bias + i, w);
        for (int j = 0; j < V; ++j) y[j] += w[j];
      }
      store_values<V>(out + r * n + i, y);
    });
  }
}

/// Stores the gradient dx of a fused norm: grad_x = dx + add (add may be grad_x itself), and dropped = dropout of
/// grad_x. add and dropped may be null.
template <class T> struct SummedGrad {
  const T* add;
  T *grad_x, *dropped;
  Drops<T> drops;

  template <int V> __device__ void store(int64_t at, Compute<T>* dx) const {
    if (add) {
      Compute<T> more[V];
      load_values<V>(add + at, more);
#pragma unroll
      for (int j = 0; j < V; ++j) dx[j] = rounded_sum(more[j], Compute<T>(T(dx[j])));
    }
    store_values<V>(grad_x + at, dx);
    if (!dropped) return;
#pragma unroll
    for (int j = 0; j < V; ++j) dx[j] = Compute<T>(T(dx[j]));
    drops.template apply<V>(at, dx);
    store_values<V>(dropped + at, dx);
  }
};

/// With y = (x - mean) rstd and h = g w: dx = rstd (h - mean(h) - y mean(h y)). `sums`, if not null, is (groups, 2, C):
/// the contributions of each group's rows to dw = sum of g y and db = sum of g. `To` is a pointer for dx, or a
/// SummedGrad.
template <bool centered, class T, class To, int threads, int V, bool held>
__global__ void __launch_bounds__(threads == warp ? 128 : threads)
    norm_grad_kernel(const T* grad, const T* x, const Compute<T>* means, const Compute<T>* rstds, const T* weight,
                     To to, Compute<T>* sums, int64_t rows, int64_t n) {
  using A = Compute<T>;
  using Walk = Row<T, threads, V, held>;
  constexpr int kept = held ? held_values<T> : 1;
  A dw[kept] = {}, db[kept] = {};
  A* const mine = sums ? sums + RowBlocks<threads>::first() * 2 * n : nullptr;
  bool fresh = true;
  for (int64_t r = RowBlocks<threads>::first(); r < rows; r += RowBlocks<threads>::step()) {
    Walk row(x + r * n, n), from(grad + r * n, n);
    const A mean = centered ? means[r] : A(0), rstd = rstds[r];
    A sum_h = 0, sum_hy = 0;
    both(row, from, [&](int64_t i, int at, A* v, A* g) {
      A w[V];
      if (weight) load_values<V>(weight + i, w);
      for (int j = 0; j < V; ++j) {
        const A y = (v[j] - mean) * rstd, h = weight ? g[j] * w[j] : g[j];
        if constexpr (held) {
          dw[at + j] += g[j] * y;
          if constexpr (centered) db[at + j] += g[j];
          v[j] = y;
          g[j] = h;
        } else if (sums) {
          mine[i + j] = (fresh ? A(0) : mine[i + j]) + g[j] * y;
          if constexpr (centered) mine[n + i + j] = (fresh ? A(0) : mine[n + i + j]) + g[j];
        }
        sum_h += h;
        sum_hy += h * y;
      }
    });
    fresh = false;
    const A mean_h = centered ? group_sum<threads>(sum_h) / A(n) : A(0), mean_hy = group_sum<threads>(sum_hy) / A(n);
    both(row, from, [&](int64_t i, int, const A* v, const A* g) {
      A dx[V], w[V];
      if (!held && weight) load_values<V>(weight + i, w);
      for (int j = 0; j < V; ++j) {
        const A y = held ? v[j] : (v[j] - mean) * rstd, h = !held && weight ? g[j] * w[j] : g[j];
        dx[j] = (h - mean_h - y * mean_hy) * rstd;
      }
      if constexpr (std::is_pointer_v<To>) store_values<V>(to + r * n + i, dx);
      else to.template store<V>(r * n + i, dx);
    });
  }
  if constexpr (held) {
    if (!sums) return;
#pragma unroll
    for (int k = 0; k < Walk::steps; ++k) {
      const int64_t i = (int64_t(k) * threads + threadIdx.x) * V;
      for (int j = 0; i < n && j < V; ++j) {
        mine[i + j] = dw[k * V + j];
        if constexpr (centered) mine[n + i + j] = db[k * V + j];
      }
    }
  }
}

/// to[c] = sum over groups of sums[group * 2 n + c]; a block has 32 columns, and sixteen threads share the groups of
/// each column.
template <class T>
__global__ void __launch_bounds__(512)
    add_groups_kernel(const Compute<T>* sums, int64_t groups, int64_t n, T* grad_weight, T* grad_bias) {
  LOCKSTEP_SHARED(double, part, [16][warp]);
  const int64_t column = int64_t(blockIdx.x) * warp + threadIdx.x;
  const bool bias = blockIdx.y == 1;
  double sum = 0;
  if (column < n) {
    for (int64_t g = threadIdx.y; g < groups; g += 16) sum += double(sums[(g * 2 + bias) * n + column]);
  }
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= n) return;
  for (int i = 1; i < 16; ++i) sum += part[i][threadIdx.x];
  T* const to = bias ? grad_bias : grad_weight;
  if (to) to[column] = T(Compute<T>(sum));
}

using Pointers = std::initializer_list<const void*>;

/// `places`: the tensors that are read or written by rows, which decide on alignment.
template <bool centered, class T, class From>
void norm(const char* op, const From& from, Pointers places, const Tensor& weight, const Tensor& bias, double eps,
          Tensor& out, Tensor* mean, Tensor& rstd) {
  using A = Compute<T>;
  const int64_t rows = out.size(0), n = out.size(1);
  const T *const w = data_or_null<T>(weight), *const b = data_or_null<T>(bias);
  with_row_shape<T>(n, places, [&]<int threads, int V, bool held> {
    using Blocks = RowBlocks<threads>;
    cuda::launch({op, Blocks::grid(rows), Blocks::block()}, norm_kernel<centered, T, From, threads, V, held>, from, w,
                 b, A(eps), out.data<T>(), mean ? mean->data<A>() : nullptr, rstd.data<A>(), rows, n);
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
  with_row_shape<T>(n, places, [&]<int threads, int V, bool held> {
    using Blocks = RowBlocks<threads>;
    // About 16 rows per group, but no more groups than keep a large device busy; depends only on the shape.
    const int64_t blocks = std::min<int64_t>((rows + 16 * Blocks::in_block - 1) / (16 * Blocks::in_block), 512),
                  groups = blocks * Blocks::in_block;
    const cuda::Scratch sums(wanted ? size_t(groups * 2 * n) * sizeof(A) : 0);
    A* const scratch = wanted ? sums.as<A>() : nullptr;
    // The first warps of a last block may have no row; their sums must then be zeros, but only held rows write those.
    cuda::launch({op, dim3(unsigned(blocks)), Blocks::block()}, norm_grad_kernel<centered, T, To, threads, V, held>,
                 grad.data<T>(), x.data<T>(), mean ? mean->data<A>() : nullptr, rstd.data<A>(), w, to, scratch, rows,
                 n);
    if (!wanted) return;
    cuda::launch({op, dim3(unsigned((n + warp - 1) / warp), db ? 2 : 1), dim3(warp, 16)}, add_groups_kernel<T>, scratch,
                 groups, n, dw, db);
  });
}

}  // namespace

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& out, Tensor& mean,
                Tensor& rstd) {
  for_floats("layer_norm", x, [&]<class T> {
    const T* const from = x.data<T>();
    norm<true, T>("layer_norm", from, {from, out.raw_data(), data_or_null<T>(weight), data_or_null<T>(bias)}, weight,
                  bias, eps, out, &mean, rstd);
  });
}

void layer_norm_grad(const Tensor& grad, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                     Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias) {
  for_floats("layer_norm_grad", x, [&]<class T> {
    T* const to = grad_x.data<T>();
    norm_grad<true, T>("layer_norm_grad", grad, x, &mean, rstd, weight, to,
                       {grad.raw_data(), x.raw_data(), to, data_or_null<T>(weight)}, grad_weight, &grad_bias);
  });
}

void rms_norm(const Tensor& x, const Tensor& weight, double eps, Tensor& out, Tensor& rstd) {
  for_floats("rms_norm", x, [&]<class T> {
    const T* const from = x.data<T>();
    norm<false, T>("rms_norm", from, {from, out.raw_data(), data_or_null<T>(weight)}, weight, {}, eps, out, nullptr,
                   rstd);
  });
}

void rms_norm_grad(const Tensor& grad, const Tensor& x, const Tensor& rstd, const Tensor& weight, Tensor& grad_x,
                   Tensor& grad_weight) {
  for_floats("rms_norm_grad", x, [&]<class T> {
    T* const to = grad_x.data<T>();
    norm_grad<false, T>("rms_norm_grad", grad, x, nullptr, rstd, weight, to,
                        {grad.raw_data(), x.raw_data(), to, data_or_null<T>(weight)}, grad_weight, nullptr);
  });
}

void add_norm(const Tensor& x, const Tensor& add, const Tensor& weight, const Tensor& bias, const AddNormArgs& args,
              Tensor& sum, Tensor& out, Tensor& mean, Tensor& rstd) {
  for_floats("add_norm", x, [&]<class T> {
    const Summed<T> from{x.data<T>(), add.data<T>(), sum.data<T>(), Drops<T>(args.p, args.key)};
    const Pointers places = {
        from.x, from.add, from.sum, out.raw_data(), data_or_null<T>(weight), data_or_null<T>(bias)};
    if (args.centered) norm<true, T>("add_norm", from, places, weight, bias, args.eps, out, &mean, rstd);
    else norm<false, T>("add_norm", from, places, weight, {}, args.eps, out, nullptr, rstd);
  });
}

void add_norm_grad(const Tensor& grad, const Tensor& add, const Tensor& sum, const Tensor& mean, const Tensor& rstd,
                   const Tensor& weight, const AddNormArgs& args, Tensor& grad_x, Tensor& dropped, Tensor& grad_weight,
                   Tensor& grad_bias) {
  for_floats("add_norm_grad", sum, [&]<class T> {
    const SummedGrad<T> to{data_or_null<T>(add), grad_x.data<T>(), data_or_null<T>(dropped),
                           Drops<T>(args.p, args.key)};
    const Pointers places = {grad.raw_data(), sum.raw_data(), to.add, to.grad_x, to.dropped, data_or_null<T>(weight)};
    if (args.centered)
      norm_grad<true, T>("add_norm_grad", grad, sum, &mean, rstd, weight, to, places, grad_weight, &grad_bias);
    else norm_grad<false, T>("add_norm_grad", grad, sum, nullptr, rstd, weight, to, places, grad_weight, nullptr);
  });
}

}  // namespace lockstep::on_cuda
