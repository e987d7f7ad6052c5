// Cross entropy over rows of logits (rows, C), for any C up to a vocabulary; softmax exists only in the gradient. Bound
// by memory: forward reads the logits once (maximum and sum of exponentials together, online), backward reads them once
// and writes the gradient, which may take their place: every thread reads its own elements before it writes them.
//
//   loss[r] = (1 - s) w[t] (lse - x[t])  +  s / C * sum_c w[c] (lse - x[c])        s: label smoothing, t: target
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/report.h"
#include "tensor/cuda/warp.h"

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

struct Smoothing {
  double part;          // label smoothing
  const double* total;  // sum of the weights; null: C
  int64_t ignored;
  bool elsewhere;  // targets of -1 are in columns that are not here
};

template <class T, int threads, int V, bool held>
__global__ void __launch_bounds__(threads == warp ? 128 : threads)
    loss_kernel(const T* x, const int64_t* target, const T* weight, Smoothing smoothing, cuda::RangeCheck good,
                Compute<T>* loss, Compute<T>* lse, int64_t rows, int64_t n) {
  using A = Compute<T>;
  for (int64_t r = RowBlocks<threads>::first(); r < rows; r += RowBlocks<threads>::step()) {
    Row<T, threads, V, held> row(x + r * n, n);
    A most = -infinity<A>, sum = 0;
    row.each([&](int64_t, const A* v) {
      A top = most;
      for (int j = 0; j < V; ++j) top = larger_of(v[j], top);
      const A base = top == -infinity<A> ? A(0) : top;  // nothing but -inf so far: exp(-inf - 0) is a clean 0
      sum *= exp_of(most - base);
      most = top;
      for (int j = 0; j < V; ++j) sum += exp_of(v[j] - base);
    });
    const A top = group_max<threads>(most);
    sum = group_sum<threads>(sum * exp_of(most - (top == -infinity<A> ? A(0) : top)));
    const A log_sum = log_of(sum);  // lse = top + log_sum; their sum loses digits when logits are large
    const int64_t t = target[r];
    A distance = 0;  // sum over c of w[c] (top - x[c])
    if (smoothing.part > 0 && t != smoothing.ignored) {
      row.each([&](int64_t i, const A* v) {
        A w[V];
        for (int j = 0; j < V; ++j) w[j] = 1;
        if (weight) load_values<V>(weight + i, w);
        for (int j = 0; j < V; ++j) distance += (top - v[j]) * w[j];
      });
      distance = group_sum<threads>(distance);
    }
    if (threadIdx.x > 0) continue;
    lse[r] = top + log_sum;
    loss[r] = 0;
    if (t == smoothing.ignored || !good(t, r)) continue;
    const double point = (double(top) - double(load(x + r * n + t))) + double(log_sum);
    double result = (1 - smoothing.part) * (weight ? double(load(weight + t)) : 1) * point;
    if (smoothing.part > 0)
      result += smoothing.part / double(n) *
                (double(distance) + (smoothing.total ? *smoothing.total : double(n)) * double(log_sum));
    loss[r] = A(result);
  }
}

/// dx[c] = softmax(x)[c] scale - w[c] spread, and - point at the target.
template <class T, int threads, int V, bool held>
__global__ void __launch_bounds__(threads == warp ? 128 : threads)
    loss_grad_kernel(const Compute<T>* grad_loss, const T* x, const Compute<T>* lse, const int64_t* target,
                     const T* weight, Smoothing smoothing, cuda::RangeCheck good, T* out, int64_t rows, int64_t n) {
  using A = Compute<T>;
  // lse in f32 carries an error of |lse| 2^-24, which moves every probability by as much: where that shows in T, divide
  // by their sum.
  constexpr A exact = sizeof(T) == 2 ? A(2048) : A(16);
  for (int64_t r = RowBlocks<threads>::first(); r < rows; r += RowBlocks<threads>::step()) {
    const int64_t t = target[r];
    bool counts = t != smoothing.ignored;
    const bool elsewhere = smoothing.elsewhere && t == -1;
    if (counts && !elsewhere && uint64_t(t) >= uint64_t(n)) {
      if (threadIdx.x == 0) good(t, r);
      counts = false;
    }
    if (!counts) {
      const A zeros[V] = {};
      for (int64_t i = int64_t(threadIdx.x) * V; i < n; i += int64_t(threads) * V)
        store_values<V>(out + r * n + i, zeros);
      continue;
    }
    const double g = double(grad_loss[r]), wt = weight ? double(load(weight + t)) : 1;
    const double point = g * (1 - smoothing.part) * wt, spread = g * smoothing.part / double(n);
    const A share = A(spread), l = lse[r];
    A scale = A(point + spread * (smoothing.total ? *smoothing.total : double(n)));
    Row<T, threads, V, held> row(x + r * n, n);
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
      store_values<V>(out + r * n + i, dx);
    });
  }
}

/// Runs fn(smoothing) with the total of the weights where it is needed.
template <class T, class Fn>
void with_smoothing(const char* op, const Tensor& weight, const CrossEntropyArgs& args, Fn&& fn) {
  const bool needed = weight.defined() && args.label_smoothing > 0;
  const cuda::Scratch total(needed ? sizeof(double) : 0);
  if (needed)
    cuda::launch({op, dim3(1), dim3(sum_threads)}, weight_total_kernel<T>, weight.data<T>(), weight.numel(),
                 total.as<double>());
  fn(Smoothing{args.label_smoothing, needed ? total.as<double>() : nullptr, args.ignore_index, args.elsewhere});
}

}  // namespace

void cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight, const CrossEntropyArgs& args,
                   Tensor& loss, Tensor& lse) {
  const int64_t rows = logits.size(0), n = logits.size(1);
  for_floats("cross_entropy", logits, [&]<class T> {
    using A = Compute<T>;
    const T* const w = data_or_null<T>(weight);
    with_smoothing<T>("cross_entropy", weight, args, [&](const Smoothing& smoothing) {
      with_row_shape<T>(n, {logits.raw_data(), w}, [&]<int threads, int V, bool held> {
        using Blocks = RowBlocks<threads>;
        cuda::launch({"cross_entropy", Blocks::grid(rows), Blocks::block()}, loss_kernel<T, threads, V, held>,
                     logits.data<T>(), target.data<int64_t>(), w, smoothing, cuda::check_targets("cross_entropy", n),
                     loss.data<A>(), lse.data<A>(), rows, n);
      });
    });
  });
}

void cross_entropy_grad(const Tensor& grad_loss, const Tensor& logits, const Tensor& lse, const Tensor& target,
                        const Tensor& weight, const CrossEntropyArgs& args, Tensor& grad) {
  const int64_t rows = logits.size(0), n = logits.size(1);
  for_floats("cross_entropy_grad", logits, [&]<class T> {
    using A = Compute<T>;
    const T* const w = data_or_null<T>(weight);
    with_smoothing<T>("cross_entropy_grad", weight, args, [&](const Smoothing& smoothing) {
      with_row_shape<T>(n, {logits.raw_data(), grad.raw_data(), w}, [&]<int threads, int V, bool held> {
        using Blocks = RowBlocks<threads>;
        cuda::launch({"cross_entropy_grad", Blocks::grid(rows), Blocks::block()}, loss_grad_kernel<T, threads, V, held>,
                     grad_loss.data<A>(), logits.data<T>(), lse.data<A>(), target.data<int64_t>(), w, smoothing,
                     cuda::check_targets("cross_entropy_grad", n), grad.data<T>(), rows, n);
      });
    });
  });
}

}  // namespace lockstep::on_cuda
