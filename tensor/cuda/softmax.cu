// Softmax and its gradient along rows (rows, C), by WarpRow and BlockRow of rows.h. Memory bound: a row is read once
// and written once. Exponentials are computed twice, because that costs less than keeping them. RowExp in device_math.h
// computes them: one version for results of 16 bits, another for f32 and f64.
#include "tensor/cuda/exp_sum.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {
namespace {

/// The number of a kernel's blocks that must fit on a multiprocessor at a time. The compiler limits registers for this.
template <class Row> constexpr int softmax_blocks() {
  if (!Row::in_registers) return sizeof(typename Row::T) == 8 ? 1 : 2;
  return 3;
}

template <class Row>
__global__ void __launch_bounds__(Row::threads, softmax_blocks<Row>())
    softmax_kernel(bool log, const typename Row::T* __restrict__ x, typename Row::T* __restrict__ out, RowSize size) {
  using A = typename Row::A;
  constexpr int V = Row::V;
  Row row = rows_of<Row, typename Row::T, 1, 1>(size, {x}, {x});
  for (row.begin(); row.more(); row.advance()) {
    A highest, sum;
    sum_of_exp(row, highest, sum);
    const RowExp<typename Row::T> e(base_of(highest));
    const A log_sum = log ? log_of(sum) : A(0), scale = e.correction() / sum;
    row.each([&](int64_t i, int, typename Row::Kept kept) {
      A v[V];
      widen(kept[0], v);
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = log ? (v[j] - highest) - log_sum : e(v[j]) * scale;
      store_values<V>(out + row.start() + i, v);
    });
  }
}

/// The gradient of the input from g = grad and the output y. For softmax it is y * (g - sum(g * y)), for log_softmax it
/// is g - exp(y) * sum(g).
template <class Row>
__global__ void __launch_bounds__(Row::threads, softmax_blocks<Row>())
    softmax_grad_kernel(bool log, const typename Row::T* __restrict__ grad, const typename Row::T* __restrict__ y,
                        typename Row::T* __restrict__ out, RowSize size) {
  using A = typename Row::A;
  constexpr int V = Row::V;
  Row row = rows_of<Row, typename Row::T, 2, 2>(size, {y, grad}, {y, grad});
  const RowExp<typename Row::T> e(A(0));
  for (row.begin(); row.more(); row.advance()) {
    A sum = 0;
    row.read([&](int64_t, int, typename Row::In in, typename Row::Kept kept) {
      A v[V], g[V];
      widen(kept[0] = in[0], v), widen(kept[1] = in[1], g);
#pragma unroll
      for (int j = 0; j < V; ++j) sum += log ? g[j] : g[j] * v[j];
    });
    sum = row.sum(sum);
    row.each([&](int64_t i, int, typename Row::Kept kept) {
      A v[V], g[V];
      widen(kept[0], v), widen(kept[1], g);
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = log ? g[j] - e(v[j]) * sum : v[j] * (g[j] - sum);
      store_values<V>(out + row.start() + i, v);
    });
  }
}

}  // namespace

void softmax(bool log, const Tensor& x, Tensor& out) {
  const int64_t rows = x.size(0), n = x.size(1);
  for_floats("softmax", x, [&]<class T> {
    with_rows<T, 1, 1>(n, n, {x.raw_data(), out.raw_data()}, [&]<class Row> {
      const RowLaunch config = launch_of<Row>({rows, n, n}, softmax_blocks<Row>());
      cuda::launch({"softmax", config.grid, config.block, config.shared}, softmax_kernel<Row>, log, x.data<T>(),
                   out.data<T>(), config.size);
    });
  });
}

void softmax_grad(bool log, const Tensor& grad, const Tensor& y, Tensor& grad_x) {
  const int64_t rows = y.size(0), n = y.size(1);
  for_floats("softmax_grad", y, [&]<class T> {
    with_rows<T, 2, 2>(n, n, {grad.raw_data(), y.raw_data(), grad_x.raw_data()}, [&]<class Row> {
      const RowLaunch config = launch_of<Row>({rows, n, n}, softmax_blocks<Row>());
      cuda::launch({"softmax_grad", config.grid, config.block, config.shared}, softmax_grad_kernel<Row>, log,
                   grad.data<T>(), y.data<T>(), grad_x.data<T>(), config.size);
    });
  });
}

}  // namespace lockstep::on_cuda
