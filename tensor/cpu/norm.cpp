// Softmax, layer norm and RMS norm along rows (rows, C). A row is read from memory once; later passes find it in cache.
// Variances are computed around the mean, never as E[x^2] - E[x]^2.
#include "tensor/cpu/rows.h"
#include "tensor/kernels.h"

namespace lockstep {
namespace {

using namespace on_cpu;

// --- softmax ---

template <class T> void softmax_row(bool log, const T* x, int64_t n, T* out) {
  using A = Acc<T>;
  Lanes<A> top[4] = {splat(-infinity<A>), splat(-infinity<A>), splat(-infinity<A>), splat(-infinity<A>)};
  each_vector<A>(n,
                 [&](int64_t i, auto count, auto k) { top[k] = max_of<A>(load(x + i, count, -infinity<A>), top[k]); });
  const A highest = max_lanes<A>(top);
  Lanes<A> sum[4] = {};
  if (log) {
    each_vector<A>(
        n, [&](int64_t i, auto count, auto k) { sum[k] += exp_lanes(load(x + i, count, -infinity<A>) - highest); });
    const A log_sum = std::log(sum_lanes<A>(sum));
    each_vector<A>(
        n, [&](int64_t i, auto count, auto) { store(out + i, (load(x + i, count) - highest) - log_sum, count); });
  } else if constexpr (std::is_same_v<T, A>) {
    each_vector<A>(n, [&](int64_t i, auto count, auto k) {
      const Lanes<A> e = exp_lanes(load(x + i, count, -infinity<A>) - highest);
      store(out + i, e, count);
      sum[k] += e;
    });
    const A scale = 1 / sum_lanes<A>(sum);
    each_vector<A>(n, [&](int64_t i, auto count, auto) { store(out + i, load(out + i, count) * scale, count); });
  } else {  // out is too coarse to hold the exponentials: computes them twice
    each_vector<A>(
        n, [&](int64_t i, auto count, auto k) { sum[k] += exp_lanes(load(x + i, count, -infinity<A>) - highest); });
    const A scale = 1 / sum_lanes<A>(sum);
    each_vector<A>(n, [&](int64_t i, auto count, auto) {
      store(out + i, exp_lanes(load(x + i, count) - highest) * scale, count);
    });
  }
}

/// The gradient of the input from g, the gradient of the output y. For softmax it is y * (g - sum(g * y)), for log
/// softmax it is g - exp(y) * sum(g).
template <class T> void softmax_grad_row(bool log, const T* g, const T* y, int64_t n, T* out) {
  using A = Acc<T>;
  Lanes<A> sum[4] = {};
  if (log) {
    each_vector<A>(n, [&](int64_t i, auto count, auto k) { sum[k] += load(g + i, count); });
    const A total = sum_lanes<A>(sum);
    each_vector<A>(n, [&](int64_t i, auto count, auto) {
      store(out + i, load(g + i, count) - exp_lanes(load(y + i, count)) * total, count);
    });
  } else {
    each_vector<A>(n, [&](int64_t i, auto count, auto k) { sum[k] += load(g + i, count) * load(y + i, count); });
    const A total = sum_lanes<A>(sum);
    each_vector<A>(n, [&](int64_t i, auto count, auto) {
      store(out + i, load(y + i, count) * (load(g + i, count) - total), count);
    });
  }
}

// --- layer norm (centered) and RMS norm (not centered) ---
// Like Llama, RMS norm rounds 16-bit values twice: before and after the multiplication by the weight.

// The mean of a row is mean + rest, because a single number of type A is not precise enough.
template <class A> struct RowStatistics { A mean, rest, rstd; };

template <bool centered, class T> RowStatistics<Acc<T>> row_statistics(const T* x, int64_t n, double eps) {
  using A = Acc<T>;
  A mean = 0;
  if constexpr (centered) {
    Lanes<A> sum[4] = {};
    each_vector<A>(n, [&](int64_t i, auto count, auto k) { sum[k] += load(x + i, count); });
    mean = A(double(sum_lanes<A>(sum)) / double(n));
  }
  Lanes<A> rest[4] = {}, squares[4] = {};
  each_vector<A>(n, [&](int64_t i, auto count, auto k) {
    const Lanes<A> d = load(x + i, count, mean) - mean;
    rest[k] += d;
    squares[k] += d * d;
  });
  // `shift` is the rounding error of `mean`. It is removed from the variance here, and from the results by the caller.
  const double shift = centered ? double(sum_lanes<A>(rest)) / double(n) : 0;
  const double variance = std::max(double(sum_lanes<A>(squares)) / double(n) - shift * shift, 0.0);
  return {mean, A(shift), A(1 / std::sqrt(variance + eps))};
}

template <bool centered, class T>
void norm_rows(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& out, Tensor* mean,
               Tensor& rstd) {
  using A = Acc<T>;
  const int64_t rows = x.size(0), n = x.size(1);
  const std::vector<A> w = widen<A>(weight, n, 1), b = widen<A>(bias, n, 0);
  const T* source = x.data<T>();
  T* result = out.data<T>();
  A* means = centered ? mean->data<A>() : nullptr;
  A* rstds = rstd.data<A>();
  parallel_for(rows, row_grain(n), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const T* row = source + r * n;
      T* to = result + r * n;
      const auto s = row_statistics<centered>(row, n, eps);
      rstds[r] = s.rstd;
      if constexpr (centered) {
        means[r] = s.mean + s.rest;
        const A offset = -s.rest * s.rstd;
        each_vector<A>(n, [&](int64_t i, auto count, auto) {
          const Lanes<A> y = (load(row + i, count) - s.mean) * s.rstd + offset;
          store(to + i, y * load(&w[size_t(i)], count) + load(&b[size_t(i)], count), count);
        });
      } else {
        each_vector<A>(n, [&](int64_t i, auto count, auto) {
          Lanes<A> y = load(row + i, count) * s.rstd;
          if constexpr (!std::is_same_v<T, A>) store(to + i, y, count), y = load(to + i, count);  // rounded twice
          store(to + i, y * load(&w[size_t(i)], count), count);
        });
      }
    }
  });
}

/// With g = grad, y = (x - mean) * rstd and h = g * weight: grad_x = rstd * (h - mean(h) - y * mean(h * y)). The sum of
/// g * y over the rows is grad_weight, that of g is grad_bias. If `add` is defined, it is added to the rounded grad_x.
template <bool centered, class T>
void norm_rows_grad(const Tensor& grad, const Tensor& x, const Tensor* mean, const Tensor& rstd, const Tensor& weight,
                    const Tensor& add, Tensor& grad_x, Tensor& grad_weight, Tensor* grad_bias) {
  using A = Acc<T>;
  const int64_t rows = x.size(0), n = x.size(1), blocks = (rows + row_block - 1) / row_block;
  const std::vector<A> w = widen<A>(weight, n, 1);
  std::vector<A> partial(size_t(blocks * 2 * n), 0);  // (block, {dw, db}, C)
  const T* g = grad.data<T>();
  const T* source = x.data<T>();
  T* result = grad_x.data<T>();
  const T* plus = add.defined() ? add.data<T>() : nullptr;
  const A* means = centered ? mean->data<A>() : nullptr;
  const A* rstds = rstd.data<A>();
  parallel_for(blocks, std::max<int64_t>(1, row_grain(n) / row_block), [&](int64_t first, int64_t last) {
    // `add` is added in a separate loop: in a single loop the compiler might not round dx before the addition.
    std::vector<T> made(plus ? size_t(n) : 0);
    for (int64_t r = first * row_block; r < std::min(last * row_block, rows); ++r) {
      const T *row = source + r * n, *from = g + r * n;
      T* to = plus ? made.data() : result + r * n;
      A* dw = partial.data() + r / row_block * 2 * n;
      A* db = dw + n;
      const A m = centered ? means[r] : A(0), s = rstds[r];
      Lanes<A> sum_h[4] = {}, sum_hy[4] = {};
      each_vector<A>(n, [&](int64_t i, auto count, auto k) {
        const Lanes<A> gradient = load(from + i, count), y = (load(row + i, count) - m) * s;
        const Lanes<A> h = gradient * load(&w[size_t(i)], count), gy = gradient * y;
        store(dw + i, load(dw + i, count) + gy, count);
        if constexpr (centered) {
          store(db + i, load(db + i, count) + gradient, count);
          sum_h[k] += h;
        }
        sum_hy[k] += h * y;
      });
      const A mean_h = centered ? sum_lanes<A>(sum_h) / A(n) : A(0), mean_hy = sum_lanes<A>(sum_hy) / A(n);
      each_vector<A>(n, [&](int64_t i, auto count, auto) {
        const Lanes<A> h = load(from + i, count) * load(&w[size_t(i)], count), y = (load(row + i, count) - m) * s;
        store(to + i, (h - mean_h - y * mean_hy) * s, count);
      });
      if (!plus) continue;
      each_vector<A>(n, [&](int64_t i, auto count, auto) {
        store(result + r * n + i, load(plus + r * n + i, count) + load(made.data() + i, count), count);
      });
    }
  });
  std::vector<A> sums(size_t(2 * n));
  sum_blocks(partial, blocks, 2 * n, sums.data());
  narrow(sums.data(), n, grad_weight);
  if (grad_bias) narrow(sums.data() + n, n, *grad_bias);
}

}  // namespace

void on_cpu::softmax(bool log, const Tensor& x, Tensor& out) {
  for_floats("softmax", x, [&]<class T> {
    const int64_t n = x.size(1);
    parallel_for(x.size(0), row_grain(n), [&, from = x.data<T>(), to = out.data<T>()](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) softmax_row(log, from + r * n, n, to + r * n);
    });
  });
}

void on_cpu::softmax_grad(bool log, const Tensor& grad, const Tensor& y, Tensor& grad_x) {
  for_floats("softmax_grad", y, [&]<class T> {
    const int64_t n = y.size(1);
    const T *g = grad.data<T>(), *from = y.data<T>();
    T* to = grad_x.data<T>();
    parallel_for(y.size(0), row_grain(n), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) softmax_grad_row(log, g + r * n, from + r * n, n, to + r * n);
    });
  });
}

void on_cpu::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& out,
                        Tensor& mean, Tensor& rstd) {
  for_floats("layer_norm", x, [&]<class T> { norm_rows<true, T>(x, weight, bias, eps, out, &mean, rstd); });
}

void on_cpu::layer_norm_grad(const Tensor& grad, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                             const Tensor& weight, Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias) {
  for_floats("layer_norm_grad", x, [&]<class T> {
    norm_rows_grad<true, T>(grad, x, &mean, rstd, weight, {}, grad_x, grad_weight, &grad_bias);
  });
}

void on_cpu::rms_norm(const Tensor& x, const Tensor& weight, double eps, Tensor& out, Tensor& rstd) {
  for_floats("rms_norm", x, [&]<class T> { norm_rows<false, T>(x, weight, {}, eps, out, nullptr, rstd); });
}

void on_cpu::rms_norm_grad(const Tensor& grad, const Tensor& x, const Tensor& rstd, const Tensor& weight,
                           Tensor& grad_x, Tensor& grad_weight) {
  for_floats("rms_norm_grad", x, [&]<class T> {
    norm_rows_grad<false, T>(grad, x, nullptr, rstd, weight, {}, grad_x, grad_weight, nullptr);
  });
}

// First computes sum = add + dropout(x), or add + x without dropout, then the norm of sum. One pass for both would
// save little: dropout spends its time on random numbers.
void on_cpu::add_norm(const Tensor& x, const Tensor& add, const Tensor& weight, const Tensor& bias,
                      const AddNormArgs& args, Tensor& sum, Tensor& out, Tensor& mean, Tensor& rstd) {
  const Tensor* const both[] = {&add, &x};
  if (args.p > 0) dropout(x, args.p, args.key, {}, add, sum);
  else pointwise(PointwiseOp::add, PointwisePart::value, {}, both, 2, sum);
  if (args.centered) layer_norm(sum, weight, bias, args.eps, out, mean, rstd);
  else rms_norm(sum, weight, args.eps, out, rstd);
}

void on_cpu::add_norm_grad(const Tensor& grad, const Tensor& add, const Tensor& sum, const Tensor& mean,
                           const Tensor& rstd, const Tensor& weight, const AddNormArgs& args, Tensor& grad_x,
                           Tensor& dropped, Tensor& grad_weight, Tensor& grad_bias, Tensor& sums) {
  for_floats("add_norm_grad", sum, [&]<class T> {
    if (args.centered) norm_rows_grad<true, T>(grad, sum, &mean, rstd, weight, add, grad_x, grad_weight, &grad_bias);
    else norm_rows_grad<false, T>(grad, sum, nullptr, rstd, weight, add, grad_x, grad_weight, nullptr);
  });
  if (dropped.defined()) dropout(grad_x, args.p, args.key, {}, {}, dropped);
  if (sums.defined()) column_sums(dropped.defined() ? dropped : grad_x, sums);
}

}  // namespace lockstep
