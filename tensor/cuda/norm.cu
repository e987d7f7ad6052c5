// Layer norm and RMS norm along rows (rows, C), and their gradients. Bound by memory: forward reads x once and writes
// once, backward reads x and the gradient once (rows of up to 8192 elements, which stay in registers; longer ones are
// read again, as are those that lie badly from 2048 on, and f64 from 1024). Gradients of weight and bias: each group of
// threads sums up the rows that it walks along, always the same ones whatever the device, as every thread keeps to its
// own columns; then a second kernel adds the groups' sums in order.
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/warp.h"

namespace lockstep::on_cuda {
namespace {

/// The mean is kept as mean + rest, which one A could not hold. Variances are taken around the mean.
template <bool centered, class T, int threads, int V, bool held>
__global__ void __launch_bounds__(threads == warp ? 128 : threads)
    norm_kernel(const T* x, const T* weight, const T* bias, Compute<T> eps, T* out, Compute<T>* means,
                Compute<T>* rstds, int64_t rows, int64_t n) {
  using A = Compute<T>;
  for (int64_t r = RowBlocks<threads>::first(); r < rows; r += RowBlocks<threads>::step()) {
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
    // The rounded mean is off by `shift`: that is taken out of the variance and of the result.
    const A shift = centered ? group_sum<threads>(rest) / A(n) : A(0);
    const A variance = larger_of(group_sum<threads>(squares) / A(n) - shift * shift, A(0));
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
        for (int j = 0; j < V; ++j) y[j] = (centered ? y[j] : A(T(y[j]))) * w[j];  // RMS: rounded twice, as Llama's
      }
      if (bias) {
        load_values<V>(bias + i, w);
        for (int j = 0; j < V; ++j) y[j] += w[j];
      }
      store_values<V>(out + r * n + i, y);
    });
  }
}

/// With y = (x - mean) rstd and h = g w: dx = rstd (h - mean(h) - y mean(h y)). sums, if wanted: (groups, {dw, db}, C),
/// what the rows of each group add to dw = sum of g y and db = sum of g.
template <bool centered, class T, int threads, int V, bool held>
__global__ void __launch_bounds__(threads == warp ? 128 : threads)
    norm_grad_kernel(const T* grad, const T* x, const Compute<T>* means, const Compute<T>* rstds, const T* weight,
                     T* grad_x, Compute<T>* sums, int64_t rows, int64_t n) {
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
      store_values<V>(grad_x + r * n + i, dx);
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

/// to[c] = sum over groups of sums[group * 2 n + c], 32 columns a block. Sixteen threads take turns at the groups of a
/// column.
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

template <bool centered, class T>
void norm(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& out,
          Tensor* mean, Tensor& rstd) {
  using A = Compute<T>;
  const int64_t rows = x.size(0), n = x.size(1);
  const T *const w = data_or_null<T>(weight), *const b = data_or_null<T>(bias);
  with_row_shape<T>(n, {x.raw_data(), out.raw_data(), w, b}, [&]<int threads, int V, bool held> {
    using Blocks = RowBlocks<threads>;
    cuda::launch({op, Blocks::grid(rows), Blocks::block()}, norm_kernel<centered, T, threads, V, held>, x.data<T>(), w,
                 b, A(eps), out.data<T>(), mean ? mean->data<A>() : nullptr, rstd.data<A>(), rows, n);
  });
}

template <bool centered, class T>
void norm_grad(const char* op, const Tensor& grad, const Tensor& x, const Tensor* mean, const Tensor& rstd,
               const Tensor& weight, Tensor& grad_x, Tensor& grad_weight, Tensor* grad_bias) {
  using A = Compute<T>;
  const int64_t rows = x.size(0), n = x.size(1);
  const T* const w = data_or_null<T>(weight);
  T *const dw = data_or_null<T>(grad_weight), *const db = grad_bias ? data_or_null<T>(*grad_bias) : nullptr;
  const bool wanted = dw || db;
  with_row_shape<T>(n, {grad.raw_data(), x.raw_data(), grad_x.raw_data(), w}, [&]<int threads, int V, bool held> {
    using Blocks = RowBlocks<threads>;
    // About 16 rows a group, but no more groups than keep a large device busy: a function of the shape alone.
    const int64_t blocks = std::min<int64_t>((rows + 16 * Blocks::in_block - 1) / (16 * Blocks::in_block), 512),
                  groups = blocks * Blocks::in_block;
    const cuda::Scratch sums(wanted ? size_t(groups * 2 * n) * sizeof(A) : 0);
    A* const scratch = wanted ? sums.as<A>() : nullptr;
    // The first warps of a last block may have no row; their sums are then zeros, but only held rows write those.
    cuda::launch({op, dim3(unsigned(blocks)), Blocks::block()}, norm_grad_kernel<centered, T, threads, V, held>,
                 grad.data<T>(), x.data<T>(), mean ? mean->data<A>() : nullptr, rstd.data<A>(), w, grad_x.data<T>(),
                 scratch, rows, n);
    if (!wanted) return;
    cuda::launch({op, dim3(unsigned((n + warp - 1) / warp), db ? 2 : 1), dim3(warp, 16)}, add_groups_kernel<T>, scratch,
                 groups, n, dw, db);
  });
}

}  // namespace

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& out, Tensor& mean,
                Tensor& rstd) {
  for_floats("layer_norm", x, [&]<class T> { norm<true, T>("layer_norm", x, weight, bias, eps, out, &mean, rstd); });
}

void layer_norm_grad(const Tensor& grad, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                     Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias) {
  for_floats("layer_norm_grad", x, [&]<class T> {
    norm_grad<true, T>("layer_norm_grad", grad, x, &mean, rstd, weight, grad_x, grad_weight, &grad_bias);
  });
}

void rms_norm(const Tensor& x, const Tensor& weight, double eps, Tensor& out, Tensor& rstd) {
  for_floats("rms_norm", x, [&]<class T> { norm<false, T>("rms_norm", x, weight, {}, eps, out, nullptr, rstd); });
}

void rms_norm_grad(const Tensor& grad, const Tensor& x, const Tensor& rstd, const Tensor& weight, Tensor& grad_x,
                   Tensor& grad_weight) {
  for_floats("rms_norm_grad", x, [&]<class T> {
    norm_grad<false, T>("rms_norm_grad", grad, x, nullptr, rstd, weight, grad_x, grad_weight, nullptr);
  });
}

}  // namespace lockstep::on_cuda
