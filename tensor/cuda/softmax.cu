// Softmax and its gradient along rows (rows, C). Memory bound: a row that fits into the registers of a block (8192
// elements) is read once and written once. A longer row is read twice: the first pass computes its maximum and its sum
// of exponentials together (online softmax, Milakov & Gimelshein 2018).
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/warp.h"

namespace lockstep::on_cuda {
namespace {

template <class T, int threads, int V, bool held>
__global__ void __launch_bounds__(threads == warp ? 128 : threads)
    softmax_kernel(bool log, const T* x, T* out, int64_t rows, int64_t n) {
  using A = Compute<T>;
  for (int64_t r = RowBlocks<threads>::first(); r < rows; r += RowBlocks<threads>::step()) {
    Row<T, threads, V, held> row(x + r * n, n);
    A most = -infinity<A>, sum = 0;
    if constexpr (held) {
      row.each([&](int64_t, const A* v) {
        for (int j = 0; j < V; ++j) most = larger_of(v[j], most);
      });
      most = group_max<threads>(most);
      row.each([&](int64_t, A* v) {
        for (int j = 0; j < V; ++j) {
          const A e = exp_of(v[j] - most);
          sum += e;
          v[j] = log ? v[j] - most : e;
        }
      });
      sum = group_sum<threads>(sum);
    } else {
      row.sum_of_exp(most, sum);
    }
    const A log_sum = log ? log_of(sum) : A(0), scale = A(1) / sum;
    row.each([&](int64_t i, A* v) {
      A y[V];
      for (int j = 0; j < V; ++j) {
        if (held) y[j] = log ? v[j] - log_sum : v[j] * scale;
        else y[j] = log ? (v[j] - most) - log_sum : exp_of(v[j] - most) * scale;
      }
      store_values<V>(out + r * n + i, y);
    });
  }
}

/// softmax: dx = y (g - sum g y). log_softmax: dx = g - exp(y) sum g.
template <class T, int threads, int V, bool held>
__global__ void __launch_bounds__(threads == warp ? 128 : threads)
    softmax_grad_kernel(bool log, const T* grad, const T* y, T* out, int64_t rows, int64_t n) {
  using A = Compute<T>;
  for (int64_t r = RowBlocks<threads>::first(); r < rows; r += RowBlocks<threads>::step()) {
    Row<T, threads, V, held> row(y + r * n, n), from(grad + r * n, n);
    A sum = 0;
    both(row, from, [&](int64_t, int, const A* v, const A* g) {
      for (int j = 0; j < V; ++j) sum += log ? g[j] : g[j] * v[j];
    });
    sum = group_sum<threads>(sum);
    both(row, from, [&](int64_t i, int, const A* v, const A* g) {
      A dx[V];
      for (int j = 0; j < V; ++j) dx[j] = log ? g[j] - exp_of(v[j]) * sum : v[j] * (g[j] - sum);
      store_values<V>(out + r * n + i, dx);
    });
  }
}

}  // namespace

void softmax(bool log, const Tensor& x, Tensor& out) {
  const int64_t rows = x.size(0), n = x.size(1);
  for_floats("softmax", x, [&]<class T> {
    with_row_shape<T>(n, {x.raw_data(), out.raw_data()}, [&]<int threads, int V, bool held> {
      using Blocks = RowBlocks<threads>;
      cuda::launch({"softmax", Blocks::grid(rows), Blocks::block()}, softmax_kernel<T, threads, V, held>, log,
                   x.data<T>(), out.data<T>(), rows, n);
    });
  });
}

void softmax_grad(bool log, const Tensor& grad, const Tensor& y, Tensor& grad_x) {
  const int64_t rows = y.size(0), n = y.size(1);
  for_floats("softmax_grad", y, [&]<class T> {
    with_row_shape<T>(n, {grad.raw_data(), y.raw_data(), grad_x.raw_data()}, [&]<int threads, int V, bool held> {
      using Blocks = RowBlocks<threads>;
      cuda::launch({"softmax_grad", Blocks::grid(rows), Blocks::block()}, softmax_grad_kernel<T, threads, V, held>, log,
                   grad.data<T>(), y.data<T>(), grad_x.data<T>(), rows, n);
    });
  });
}

}  // namespace lockstep::on_cuda
