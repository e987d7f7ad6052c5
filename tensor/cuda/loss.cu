// Cross entropy over rows of logits (rows, C), for any C up to a vocabulary; the softmax exists only in the gradient.
// Memory bound. Forward reads the logits once (online softmax: maximum and sum of exponentials together). Backward
// reads them once and writes the gradient, which may overwrite them: every thread reads its own elements before it
// writes them. Forward and backward in one kernel read the logits once from memory, and long rows once more from L2.
//
//   loss[r] = (1 - s) w[t] (lse - x[t])  +  s / C * sum_c w[c] (lse - x[c])        s: label smoothing, t: target
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/report.h"
#include "tensor/cuda/warp.h"
#include "tensor/padded.h"

namespace lockstep::on_cuda {
namespace {

constexpr int sum_threads = 512;

/// total = sum of the weights, which label smoothing needs. One block.
template <class T>
__global__ void __launch_bounds__(sum_threads) weight_total_kernel(const T* weight, int64_t n, double* total) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += sum_threads) sum += double(load(weight + i));
  sum = group_sum<sum_threads>(sum);
  if (threadIdx.x == 0) *total = sum;
}

/// The arguments of cross_entropy() that concern all rows.
struct Smoothing {
  double part;          // the label smoothing s
  const double* total;  // sum of the class weights; null: C
  int64_t ignored;      // rows with this target have no loss
  bool elsewhere;       // true: a target of -1 means that the class is on another shard of the vocabulary
};

/// The targets of all rows and how they count.
template <class T> struct Targets {
  const int64_t* target;
  const T* weight;  // class weights, or null
  Smoothing smoothing;
  cuda::RangeCheck good;
};

/// Writes the loss of row r; returns its log-sum-exp to every thread.
template <class T, int threads, int V, bool held>
__device__ Compute<T> loss_of(Row<T, threads, V, held>& row, const Targets<T>& to, int64_t r, Compute<T>* loss) {
  using A = Compute<T>;
  const Smoothing& smoothing = to.smoothing;
  A top, sum;
  row.sum_of_exp(top, sum);
  const A log_sum = log_of(sum);  // lse = top + log_sum, kept apart: their sum loses digits when logits are large
  const int64_t t = to.target[r];
  A distance = 0;  // sum over c of w[c] (top - x[c])
  if (smoothing.part > 0 && t != smoothing.ignored) {
    row.each([&](int64_t i, const A* v) {
      A w[V];
      for (int j = 0; j < V; ++j) w[j] = 1;
      if (to.weight) load_values<V>(to.weight + i, w);
      for (int j = 0; j < V; ++j) distance += (top - v[j]) * w[j];
    });
    distance = group_sum<threads>(distance);
  }
  // Done by the thread that will write the gradient of the target, as that may overwrite the logit.
  const bool counts = t != smoothing.ignored, inside = uint64_t(t) < uint64_t(row.n);
  if (threadIdx.x == (counts && inside ? t / V % threads : 0)) {
    double result = 0;
    if (counts && to.good(t, r)) {
      const double point = (double(top) - double(load(row.data + t))) + double(log_sum);
      result = (1 - smoothing.part) * (to.weight ? double(load(to.weight + t)) : 1) * point;
      if (smoothing.part > 0)
        result += smoothing.part / double(row.n) *
                  (double(distance) + (smoothing.total ? *smoothing.total : double(row.n)) * double(log_sum));
    }
    loss[r] = A(result);
  }
  return top + log_sum;
}

/// dx[c] = softmax(x)[c] scale - w[c] spread, minus `point` at the target. l: the row's log-sum-exp.
template <class T, int threads, int V, bool held>
__device__ void grad_of(Row<T, threads, V, held>& row, const Targets<T>& to, int64_t r, Compute<T> upstream,
                        Compute<T> l, T* out) {
  using A = Compute<T>;
  // lse in f32 has an error of |lse| 2^-24, which scales all probabilities. If that is visible in T, divide by the sum
  // of the probabilities.
  constexpr A exact = sizeof(T) == 2 ? A(2048) : A(16);
  const Smoothing& smoothing = to.smoothing;
  const T* const weight = to.weight;
  const int64_t t = to.target[r], n = row.n;
  bool counts = t != smoothing.ignored;
  const bool elsewhere = smoothing.elsewhere && t == -1;
  if (counts && !elsewhere && uint64_t(t) >= uint64_t(n)) {
    if (threadIdx.x == 0) to.good(t, r);
    counts = false;
  }
  if (!counts) {
    const A zeros[V] = {};
    for (int64_t i = int64_t(threadIdx.x) * V; i < n; i += int64_t(threads) * V) store_values<V>(out + i, zeros);
    return;
  }
  const double g = double(upstream), wt = weight ? double(load(weight + t)) : 1;
  const double point = g * (1 - smoothing.part) * wt, spread = g * smoothing.part / double(n);
  const A share = A(spread);
  A scale = A(point + spread * (smoothing.total ? *smoothing.total : double(n)));
  if (!smoothing.elsewhere && std::fabs(l) > exact) {
    A sum = 0;
    row.each([&](int64_t, const A* v) {
      for (int j = 0; j < V; ++j) sum += exp_of(v[j] - l);
    });
    scale /= group_sum<threads>(sum);
  }
  row.each([&](int64_t i, const A* v) {
    A dx[V], w[V];
    for (int j = 0; j < V; ++j) w[j] = 1;
    if (weight && share != 0) load_values<V>(weight + i, w);
    for (int j = 0; j < V; ++j) {
      dx[j] = exp_of(v[j] - l) * scale;
      if (share != 0) dx[j] -= w[j] * share;
      if (i + j == t) dx[j] = A(::exp(double(v[j]) - double(l)) * double(scale) - wt * spread - point);
    }
    store_values<V>(out + i, dx);
  });
}

/// Loss and lse of each row; with_grad: also the gradient, to `out`, which may be x.
template <class T, int threads, int V, bool held, bool with_grad>
__global__ void __launch_bounds__(threads == warp ? 128 : threads)
    loss_kernel(const T* x, Targets<T> to, const Compute<T>* grad_loss, Compute<T>* loss, Compute<T>* lse, T* out,
                int64_t rows, int64_t n, int64_t step, int64_t out_step) {
  for (int64_t r = RowBlocks<threads>::first(); r < rows; r += RowBlocks<threads>::step()) {
    Row<T, threads, V, held> row(x + r * step, n);
    const Compute<T> l = loss_of(row, to, r, loss);
    if (threadIdx.x == 0) lse[r] = l;
    if constexpr (with_grad) grad_of(row, to, r, grad_loss[r], l, out + r * out_step);
  }
}

/// The gradient alone, from a saved lse.
template <class T, int threads, int V, bool held>
__global__ void __launch_bounds__(threads == warp ? 128 : threads)
    loss_grad_kernel(const Compute<T>* grad_loss, const T* x, const Compute<T>* lse, Targets<T> to, T* out,
                     int64_t rows, int64_t n, int64_t step, int64_t out_step) {
  for (int64_t r = RowBlocks<threads>::first(); r < rows; r += RowBlocks<threads>::step()) {
    Row<T, threads, V, held> row(x + r * step, n);
    grad_of(row, to, r, grad_loss[r], lse[r], out + r * out_step);
  }
}

/// Where the second row begins: rows are aligned if the first two are.
const void* second_row(const Tensor& x) {
  return static_cast<const char*>(x.raw_data()) + row_step(x) * size_of(x.dtype());
}

/// Calls fn(targets), after summing the class weights if label smoothing needs it.
template <class T, class Fn>
void with_targets(const char* op, const Tensor& target, const Tensor& weight, const CrossEntropyArgs& args,
                  int64_t classes, Fn&& fn) {
  const bool needed = weight.defined() && args.label_smoothing > 0;
  const cuda::Scratch total(needed ? sizeof(double) : 0);
  if (needed)
    cuda::launch({op, dim3(1), dim3(sum_threads)}, weight_total_kernel<T>, weight.data<T>(), weight.numel(),
                 total.as<double>());
  fn(Targets<T>{target.data<int64_t>(),
                data_or_null<T>(weight),
                {args.label_smoothing, needed ? total.as<double>() : nullptr, args.ignore_index, args.elsewhere},
                cuda::check_targets(op, classes)});
}

}  // namespace

void cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight, const CrossEntropyArgs& args,
                   const Tensor& grad_loss, Tensor& loss, Tensor& lse, Tensor& grad) {
  const int64_t rows = logits.size(0), n = logits.size(1);
  for_floats("cross_entropy", logits, [&]<class T> {
    using A = Compute<T>;
    with_targets<T>("cross_entropy", target, weight, args, n, [&](const Targets<T>& to) {
      T* const out = data_or_null<T>(grad);
      with_row_shape<T>(n, {logits.raw_data(), second_row(logits), to.weight, out, out ? second_row(grad) : nullptr},
                        [&]<int threads, int V, bool held> {
                          using Blocks = RowBlocks<threads>;
                          cuda::launch(
                              {"cross_entropy", Blocks::grid(rows), Blocks::block()},
                              out ? loss_kernel<T, threads, V, held, true> : loss_kernel<T, threads, V, held, false>,
                              logits.data<T>(), to, data_or_null<A>(grad_loss), loss.data<A>(), lse.data<A>(), out,
                              rows, n, row_step(logits), out ? row_step(grad) : 0);
                        });
    });
  });
}

void cross_entropy_grad(const Tensor& grad_loss, const Tensor& logits, const Tensor& lse, const Tensor& target,
                        const Tensor& weight, const CrossEntropyArgs& args, Tensor& grad) {
  const int64_t rows = logits.size(0), n = logits.size(1);
  for_floats("cross_entropy_grad", logits, [&]<class T> {
    using A = Compute<T>;
    with_targets<T>("cross_entropy_grad", target, weight, args, n, [&](const Targets<T>& to) {
      with_row_shape<T>(n, {logits.raw_data(), second_row(logits), grad.raw_data(), second_row(grad), to.weight},
                        [&]<int threads, int V, bool held> {
                          using Blocks = RowBlocks<threads>;
                          cuda::launch({"cross_entropy_grad", Blocks::grid(rows), Blocks::block()},
                                       loss_grad_kernel<T, threads, V, held>, grad_loss.data<A>(), logits.data<T>(),
                                       lse.data<A>(), to, grad.data<T>(), rows, n, row_step(logits), row_step(grad));
                        });
    });
  });
}

}  // namespace lockstep::on_cuda
