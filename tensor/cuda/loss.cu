// Cross entropy over rows of logits x (rows, C), by WarpRow and BlockRow of rows.h. Memory bound: forward reads the
// logits once, and backward reads them once and writes the gradient. A kernel for both reads once and writes once. The
// gradient may overwrite the logits: every thread reads its own elements before it writes them. Rows may have padding
// between them and may end within a vector of 16 bytes. The padding is neither read nor written. With label smoothing
// s, target t, class weights w and lse = log sum exp(x):
//
//   loss[r] = (1 - s) w[t] (lse - x[t])  +  s / C * sum_c w[c] (lse - x[c])
#include <numeric>

#include "tensor/cuda/exp_sum.h"
#include "tensor/cuda/report.h"
#include "tensor/kernels.h"
#include "tensor/padded.h"

namespace lockstep::on_cuda {
namespace {

constexpr int sum_threads = 512;

/// Writes the sum of the class weights, which label smoothing needs, to *total. Launched with one block.
template <class T>
__global__ void __launch_bounds__(sum_threads) weight_total_kernel(const T* weight, int64_t n, double* total) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += sum_threads) sum += double(load(weight + i));
  sum = group_sum<sum_threads>(sum);
  if (threadIdx.x == 0) *total = sum;
}

/// The options of cross_entropy(), the same for all rows.
struct Smoothing {
  double part;          // the label smoothing s
  const double* total;  // sum of the class weights; null: C
  int64_t ignored;      // rows with this target have no loss
  bool elsewhere;       // true: a target of -1 means that the class is on another shard of the vocabulary
};

/// The targets of all rows, the class weights and the options.
template <class T> struct Targets {
  const int64_t* target;
  const T* weight;  // class weights, or null
  Smoothing smoothing;
  cuda::RangeCheck good;
};

/// Reads the row, writes its loss to loss[row], and returns its log-sum-exp to every thread.
template <class Row>
__device__ typename Row::A loss_of(Row& row, const Targets<typename Row::T>& to, const typename Row::T* x, int64_t n,
                                   typename Row::A* loss) {
  using T = typename Row::T;
  using A = typename Row::A;
  constexpr int V = Row::V;
  const Smoothing& smoothing = to.smoothing;
  const int64_t r = row.number(), t = to.target[r];
  const bool counts = t != smoothing.ignored, inside = uint64_t(t) < uint64_t(n);
  // The thread that will write the gradient of the target reads its logit now, because the gradient may overwrite it.
  const bool mine = row.thread() == (counts && inside ? row.owner(t) : 0);
  const A logit = mine && counts && inside ? load(x + row.start() + t) : A(0);
  A top, sum;
  sum_of_exp(row, top, sum);
  const A log_sum = log_of(sum);  // lse = top + log_sum, kept apart: their sum loses digits when logits are large
  A distance = 0;                 // sum over c of w[c] (top - x[c])
  if (smoothing.part > 0 && counts) {
    row.each([&](int64_t i, int, typename Row::Kept kept) {
      A v[V], w[V];
      widen(kept[0], v);
      if (to.weight) widen(load_part<V, Row::ragged>(to.weight, i, n, T(0.f)), w);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (!Row::ragged || i + j < n) distance += to.weight ? (top - v[j]) * w[j] : top - v[j];
      }
    });
    distance = row.sum(distance);
  }
  if (mine) {
    double result = 0;
    if (counts && to.good(t, r)) {
      const double point = (double(top) - double(logit)) + double(log_sum);
      result = (1 - smoothing.part) * (to.weight ? double(load(to.weight + t)) : 1) * point;
      if (smoothing.part > 0)
        result += smoothing.part / double(n) *
                  (double(distance) + (smoothing.total ? *smoothing.total : double(n)) * double(log_sum));
    }
    loss[r] = A(result);
  }
  return top + log_sum;
}

/// Writes the gradient of a row, which row.read() has read, to `made`. `upstream` is the gradient of the row's loss,
/// `l` its log-sum-exp.
template <class Row>
__device__ void grad_of(Row& row, const Targets<typename Row::T>& to, const typename Row::T* x, int64_t n,
                        typename Row::A upstream, typename Row::A l, typename Row::T* made) {
  using T = typename Row::T;
  using A = typename Row::A;
  constexpr int V = Row::V;
  // lse in f32 has an error of |lse| 2^-24, and all probabilities have the same relative error. If that exceeds the
  // rounding error of T, the probabilities are divided by their sum.
  constexpr A exact = std::is_same_v<T, BFloat16> ? A(2048) : sizeof(T) == 2 ? A(256) : A(16);
  const Smoothing& smoothing = to.smoothing;
  const T* const weight = to.weight;
  const int64_t r = row.number(), t = to.target[r];
  bool counts = t != smoothing.ignored;
  const bool elsewhere = smoothing.elsewhere && t == -1;
  if (counts && !elsewhere && uint64_t(t) >= uint64_t(n)) {
    if (row.thread() == 0) to.good(t, r);
    counts = false;
  }
  if (!counts) {
    const A zeros[V] = {};
    row.each([&](int64_t i, int, typename Row::Kept) { store_part<V, Row::ragged>(made, i, n, zeros); });
    return;
  }
  const bool mine = !elsewhere && row.thread() == row.owner(t);
  const double logit = mine ? double(load(x + row.start() + t)) : 0;  // before it may be overwritten
  const double g = double(upstream), wt = weight && !elsewhere ? double(load(weight + t)) : 1;
  const double point = g * (1 - smoothing.part) * wt, per_class = g * smoothing.part / double(n);
  const A share = A(per_class);
  const RowExp<T> e(l);
  A scale = A(point + per_class * (smoothing.total ? *smoothing.total : double(n))), factor = scale * e.correction();
  if (!smoothing.elsewhere && std::fabs(l) > exact) {
    A sum = 0;
    row.each([&](int64_t, int, typename Row::Kept kept) {
      A v[V];
      widen(kept[0], v);
#pragma unroll
      for (int j = 0; j < V; ++j) sum += e(v[j]);
    });
    sum = row.sum(sum);
    factor = scale / sum;
    scale /= sum * e.correction();
  }
  const T at_target = mine ? T(A(::exp(logit - double(l)) * double(scale) - wt * per_class - point)) : T(0.f);
  row.each([&](int64_t i, int, typename Row::Kept kept) {
    A dx[V];
    widen(kept[0], dx);
#pragma unroll
    for (int j = 0; j < V; ++j) dx[j] = e(dx[j]) * factor;
    if (share != 0) {
      A w[V];
      if (weight) widen(load_part<V, Row::ragged>(weight, i, n, T(0.f)), w);
#pragma unroll
      for (int j = 0; j < V; ++j) dx[j] -= weight ? w[j] * share : share;
    }
    store_part<V, Row::ragged>(made, i, n, dx);
  });
  if (mine) made[t] = at_target;
}

/// How many blocks of a kernel must fit on a multiprocessor at a time. The compiler limits the registers accordingly.
template <class Row> constexpr int loss_blocks() {
  if (!Row::in_registers) return sizeof(typename Row::T) == 8 ? 1 : 2;
  return 3;
}

template <class Row> __device__ inline Row logits_of(const RowSize& size, const typename Row::T* x) {
  return rows_of<Row, typename Row::T, 1, 1>(size, {x}, {x}, 0, typename Row::T(-infinity<float>));
}

/// Writes the loss and the log-sum-exp of each row. With with_grad, also writes the gradient to `out`, which may be x.
template <class Row, bool with_grad>
__global__ void __launch_bounds__(Row::threads, loss_blocks<Row>())
    loss_kernel(const typename Row::T* x, Targets<typename Row::T> to, const typename Row::A* grad_loss,
                typename Row::A* loss, typename Row::A* lse, typename Row::T* out, int64_t out_stride, RowSize size) {
  Row row = logits_of<Row>(size, x);
  for (row.begin(); row.more(); row.advance()) {
    const int64_t r = row.number();
    const typename Row::A l = loss_of(row, to, x, size.columns, loss);
    if (row.thread() == 0) lse[r] = l;
    if constexpr (with_grad) grad_of(row, to, x, size.columns, grad_loss[r], l, out + r * out_stride);
  }
}

/// Writes only the gradient. `lse` is the log-sum-exp of each row, saved by loss_kernel().
template <class Row>
__global__ void __launch_bounds__(Row::threads, loss_blocks<Row>())
    loss_grad_kernel(const typename Row::A* grad_loss, const typename Row::T* x, const typename Row::A* lse,
                     Targets<typename Row::T> to, typename Row::T* out, int64_t out_stride, RowSize size) {
  Row row = logits_of<Row>(size, x);
  for (row.begin(); row.more(); row.advance()) {
    const int64_t r = row.number();
    row.read([&](int64_t, int, typename Row::In in, typename Row::Kept kept) { kept[0] = in[0]; });
    grad_of(row, to, x, size.columns, grad_loss[r], lse[r], out + r * out_stride);
  }
}

/// The greatest common divisor of the row strides of a and b, in elements.
int64_t common_step(const Tensor& a, const Tensor& b) { return std::gcd(row_step(a), row_step(b)); }

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
  const RowSize size{logits.size(0), logits.size(1), row_step(logits)};
  for_floats("cross_entropy", logits, [&]<class T> {
    using A = Compute<T>;
    with_targets<T>("cross_entropy", target, weight, args, size.columns, [&](const Targets<T>& to) {
      T* const out = data_or_null<T>(grad);
      const Tensor& made = out ? grad : logits;
      with_rows<T, 1, 1, true>(
          size.columns, common_step(logits, made), {logits.raw_data(), to.weight, out}, [&]<class Row> {
            const RowLaunch config = launch_of<Row>(size, loss_blocks<Row>());
            cuda::launch({"cross_entropy", config.grid, config.block, config.shared},
                         out ? loss_kernel<Row, true> : loss_kernel<Row, false>, logits.data<T>(), to,
                         data_or_null<A>(grad_loss), loss.data<A>(), lse.data<A>(), out, row_step(made), config.size);
          });
    });
  });
}

void cross_entropy_grad(const Tensor& grad_loss, const Tensor& logits, const Tensor& lse, const Tensor& target,
                        const Tensor& weight, const CrossEntropyArgs& args, Tensor& grad) {
  const RowSize size{logits.size(0), logits.size(1), row_step(logits)};
  for_floats("cross_entropy_grad", logits, [&]<class T> {
    using A = Compute<T>;
    with_targets<T>("cross_entropy_grad", target, weight, args, size.columns, [&](const Targets<T>& to) {
      with_rows<T, 1, 1, true>(size.columns, common_step(logits, grad), {logits.raw_data(), to.weight, grad.raw_data()},
                               [&]<class Row> {
                                 const RowLaunch config = launch_of<Row>(size, loss_blocks<Row>());
                                 cuda::launch({"cross_entropy_grad", config.grid, config.block, config.shared},
                                              loss_grad_kernel<Row>, grad_loss.data<A>(), logits.data<T>(),
                                              lse.data<A>(), to, grad.data<T>(), row_step(grad), config.size);
                               });
    });
  });
}

}  // namespace lockstep::on_cuda
