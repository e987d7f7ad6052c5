// Cross entropy over rows of logits x (rows, C). Rows may have padding between them (padded.h). Each row is read from
// memory once: the maximum and the sum of exponentials are updated block by block while the block is in cache (online
// softmax, Milakov and Gimelshein, 2018). With label smoothing s, target t, class weights w and lse = log sum exp(x):
//
//   loss[r] = (1 - s) w[t] (lse - x[t])  +  s / C * sum_c w[c] (lse - x[c])
#include "tensor/cpu/rows.h"
#include "tensor/kernels.h"
#include "tensor/padded.h"

namespace lockstep {
namespace {

using namespace on_cpu;

constexpr int64_t block = 4096;  // elements that stay in the L1 cache

/// The log sum exp of a row is max + log_sum. The two are stored separately, because their sum in f32 would lose digits
/// for large logits.
struct RowSum {
  double max, log_sum;
};

template <class T> RowSum log_sum_exp(const T* x, int64_t n) {
  using A = Acc<T>;
  A highest = -infinity<A>;
  double total = 0;
  for (int64_t start = 0; start < n; start += block) {
    const T* part = x + start;
    const int64_t length = std::min(block, n - start);
    Lanes<A> top[4] = {splat(highest), splat(highest), splat(highest), splat(highest)};
    each_vector<A>(length, [&](int64_t i, auto count, auto k) {
      top[k] = max_of<A>(load(part + i, count, -infinity<A>), top[k]);
    });
    const A before = highest;
    highest = max_lanes<A>(top);
    const A shift = highest == -infinity<A> ? 0 : highest;  // only -inf so far: exp(-inf - 0) is 0, not NaN
    Lanes<A> sum[4] = {};
    each_vector<A>(length, [&](int64_t i, auto count, auto k) {
      sum[k] += exp_lanes(load(part + i, count, -infinity<A>) - shift);
    });
    total = (total > 0 ? total * std::exp(double(before) - double(shift)) : total) + double(sum_lanes<A>(sum));
  }
  return {double(highest), std::log(total)};
}

template <class A> struct Weights {  // one per class, in A; empty if the caller gave none
  explicit Weights(const Tensor& weight, int64_t classes) : total(double(classes)) {
    if (!weight.defined()) return;
    values = widen<A>(weight, classes, 1);
    total = 0;
    for (A value : values) total += double(value);
  }
  double operator[](int64_t c) const { return values.empty() ? 1 : double(values[size_t(c)]); }

  std::vector<A> values;
  double total;  // the sum of the weights
};

/// Returns the loss of a row and writes its log sum exp to lse.
template <class T>
Acc<T> loss_of(const T* row, int64_t n, int64_t target, const Weights<Acc<T>>& weight, const CrossEntropyArgs& args,
               Acc<T>& lse) {
  using A = Acc<T>;
  const double smoothing = args.label_smoothing;
  const RowSum sum = log_sum_exp(row, n);
  lse = A(sum.max + sum.log_sum);
  if (target == args.ignore_index) return 0;
  const auto negative_log = [&](double value) { return (sum.max - value) + sum.log_sum; };
  double result = (1 - smoothing) * weight[target] * negative_log(double(A(row[target])));
  if (smoothing > 0) {
    const A highest = A(sum.max);
    const A* w = weight.values.data();
    Lanes<A> distance[4] = {};
    if (w)
      each_vector<A>(n, [&](int64_t i, auto count, auto k) {
        distance[k] += (highest - load(row + i, count, highest)) * load(w + i, count);
      });
    else
      each_vector<A>(n, [&](int64_t i, auto count, auto k) { distance[k] += highest - load(row + i, count, highest); });
    result += smoothing / double(n) * (double(sum_lanes<A>(distance)) + weight.total * sum.log_sum);
  }
  return A(result);
}

/// out[c] = exp(x[c] - lse) * scale - w[c] * per_class, where exp(x - lse) is the softmax; `out` may be x. If `full` is
/// true, x has all classes that lse covers, and `scale` may be corrected for the rounding error of lse. Returns the
/// scale that was used.
template <class T>
Acc<T> grad_row(const T* x, Acc<T> lse, Acc<T> scale, const Acc<T>* w, Acc<T> per_class, int64_t n, bool full, T* out) {
  using A = Acc<T>;
  // lse in f32 has an error of |lse| 2^-24, and every probability has the same relative error. If |lse| > 16, the
  // probabilities are divided by their sum.
  if (full && std::abs(lse) > A(16)) {
    Lanes<A> sum[4] = {};
    each_vector<A>(n,
                   [&](int64_t i, auto count, auto k) { sum[k] += exp_lanes(load(x + i, count, -infinity<A>) - lse); });
    scale /= sum_lanes<A>(sum);
  }
  if (per_class == 0) {
    each_vector<A>(
        n, [&](int64_t i, auto count, auto) { store(out + i, exp_lanes(load(x + i, count) - lse) * scale, count); });
  } else {
    each_vector<A>(n, [&](int64_t i, auto count, auto) {
      const Lanes<A> share = w ? load(w + i, count) * per_class : splat(per_class);
      store(out + i, exp_lanes(load(x + i, count) - lse) * scale - share, count);
    });
  }
  return scale;
}

/// Writes the gradient of a row to `out`, which may be x. g is the gradient of the row's loss.
template <class T>
void grad_of(Acc<T> g, const T* x, Acc<T> lse, int64_t n, int64_t target, const Weights<Acc<T>>& weight,
             const CrossEntropyArgs& args, T* out) {
  using A = Acc<T>;
  if (target == args.ignore_index) return void(std::fill(out, out + n, T(0.f)));
  if (args.elsewhere && target == -1) return void(grad_row<T>(x, lse, g, nullptr, A(0), n, false, out));
  const double smoothing = args.label_smoothing, point = double(g) * (1 - smoothing) * weight[target];
  const double per_class = double(g) * smoothing / double(n), scale = point + per_class * weight.total;
  const A* w = weight.values.empty() ? nullptr : weight.values.data();
  const A logit = A(x[target]);  // read now: the row may be overwritten
  const A used = grad_row<T>(x, lse, A(scale), w, A(per_class), n, !args.elsewhere, out);
  out[target] = T(A(std::exp(double(logit) - double(lse)) * double(used) - weight[target] * per_class - point));
}

}  // namespace

void on_cpu::cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight,
                           const CrossEntropyArgs& args, const Tensor& grad_loss, Tensor& loss, Tensor& lse,
                           Tensor& grad) {
  for_floats("cross_entropy", logits, [&]<class T> {
    using A = Acc<T>;
    const int64_t rows = logits.size(0), n = logits.size(1), step = row_step(logits),
                  grad_step = grad.defined() ? row_step(grad) : 0;
    const Weights<A> weights(weight, n);
    const T* const x = logits.data<T>();
    const int64_t* const t = target.data<int64_t>();
    A *const losses = loss.data<A>(), *const sums = lse.data<A>();
    const A* const upstream = grad.defined() ? grad_loss.data<A>() : nullptr;
    T* const out = grad.defined() ? grad.data<T>() : nullptr;
    parallel_for(rows, row_grain(n), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        losses[r] = loss_of<T>(x + r * step, n, t[r], weights, args, sums[r]);
        if (out) grad_of<T>(upstream[r], x + r * step, sums[r], n, t[r], weights, args, out + r * grad_step);
      }
    });
  });
}

void on_cpu::cross_entropy_grad(const Tensor& grad_loss, const Tensor& logits, const Tensor& lse, const Tensor& target,
                                const Tensor& weight, const CrossEntropyArgs& args, Tensor& grad) {
  for_floats("cross_entropy_grad", logits, [&]<class T> {
    using A = Acc<T>;
    const int64_t rows = logits.size(0), n = logits.size(1), step = row_step(logits), grad_step = row_step(grad);
    const Weights<A> weights(weight, n);
    const T* const x = logits.data<T>();
    T* const out = grad.data<T>();
    const A *const upstream = grad_loss.data<A>(), *const sums = lse.data<A>();
    const int64_t* const t = target.data<int64_t>();
    parallel_for(rows, row_grain(n), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r)
        grad_of<T>(upstream[r], x + r * step, sums[r], n, t[r], weights, args, out + r * grad_step);
    });
  });
}

}  // namespace lockstep
