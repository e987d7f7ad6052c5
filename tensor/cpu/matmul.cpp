// Matrix product: out = activation(alpha * a b + beta * out + bias), batched.
//
// The result is cut into panels, chosen from its shape alone, and each panel is one single-threaded product: the bits do
// not depend on the number of threads, nor on the number of matrices in the batch. What follows the product (bias,
// activation, rounding) is done panel by panel while it is in cache.
#include <unistd.h>

#include <algorithm>

#include "tensor/cpu/cpu_kernels.h"
#include "tensor/cpu/gemm.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"
#include "tensor/functors.h"
#include "tensor/ops.h"

namespace lockstep::on_cpu {
namespace {

constexpr int64_t fork_work = 1 << 18;  // multiplications that are worth a thread

/// How one result (m x n) is cut: `rows` x `columns` panels.
struct Panels {
  int64_t high, wide, rows, columns;

  Panels(int64_t m, int64_t n, int64_t k) : high(m), wide(n) {
    if (m * n * k >= 2 * fork_work) {
      // An even number of panels, on the side where they stay closer to square; 48 and 8 are the kernels' tile sizes.
      if (2 * m >= n) {
        high = piece(m, 384, 8);
        wide = n > 1536 ? piece(n, 768, 48) : n;
      } else {
        wide = piece(n, 384, 48);
        high = m > 1536 ? piece(m, 768, 8) : m;
      }
      // oneDNN's best kernel runs where 1/high + 1/wide is under this: worth larger panels, as long as there is one for
      // each core of a small machine. (The machine's cores, not those that this process may use: ranks bound to other
      // cores of it must cut alike.)
      constexpr double large = 0.001957;
      static const int64_t fewest = std::clamp<int64_t>(sysconf(_SC_NPROCESSORS_CONF), 2, 4);
      int64_t most = fewest - 1;
      for (int64_t across = 1; 1.0 / m + double(across) / n < large; ++across) {
        const int64_t w = across == 1 ? n : ((n + across - 1) / across + 47) / 48 * 48;
        const int64_t down = int64_t(m * (large - 1.0 / w));
        if (down * across <= most) continue;
        most = down * across, wide = w, high = down == 1 ? m : ((m + down - 1) / down + 7) / 8 * 8;
      }
    }
    rows = (m + high - 1) / high, columns = (n + wide - 1) / wide;
  }

  static int64_t piece(int64_t n, int64_t about, int64_t unit) {
    const int64_t count = 2 * std::max<int64_t>(1, (n + about) / (2 * about));
    return ((n + count - 1) / count + unit - 1) / unit * unit;
  }
};

/// y (n) = alpha * x a + beta * y for a (k x n): a matrix times a vector, where blocked products are slow.
template <class T>
void vector_times_matrix(int64_t n, int64_t k, T alpha, const T* x, int64_t step, MatrixView<T> a, T beta, T* y, int64_t y_step) {
  const auto put = [&](int64_t j, T sum) { T& to = y[j * y_step]; to = beta == 0 ? alpha * sum : alpha * sum + beta * to; };
  if (a.row == 1 && a.col != 1 && step == 1) {  // columns lie together: one dot product each
    for (int64_t j = 0; j < n; ++j) {
      Lanes<T> sums[4] = {};
      const T* column = a.data + j * a.col;
      each_vector<T>(k, [&](int64_t p, auto count, auto slot) { sums[slot] += load(column + p, count) * load(x + p, count); });
      put(j, sum_lanes<T>(sums));
    }
    return;
  }
  constexpr int64_t block = 256;  // outputs that stay in L1 while all of a's rows pass
  for (int64_t j0 = 0; j0 < n; j0 += block) {
    const int64_t columns = std::min(block, n - j0);
    T sums[block] = {};
    if (a.col == 1 && columns == block) {
      int64_t p = 0;
      for (; p + 4 <= k; p += 4) {
        const T *r0 = a.data + p * a.row + j0, *r1 = r0 + a.row, *r2 = r1 + a.row, *r3 = r2 + a.row;
        const T x0 = x[p * step], x1 = x[(p + 1) * step], x2 = x[(p + 2) * step], x3 = x[(p + 3) * step];
        for (int64_t j = 0; j < block; ++j) sums[j] += (x0 * r0[j] + x1 * r1[j]) + (x2 * r2[j] + x3 * r3[j]);
      }
      for (; p < k; ++p)
        for (int64_t j = 0; j < block; ++j) sums[j] += x[p * step] * a.data[p * a.row + j0 + j];
    } else if (a.col == 1) {
      for (int64_t p = 0; p < k; ++p)
        for (int64_t j = 0; j < columns; ++j) sums[j] += x[p * step] * a.data[p * a.row + j0 + j];
    } else {
      for (int64_t j = 0; j < columns; ++j)
        for (int64_t p = 0; p < k; ++p) sums[j] += x[p * step] * a.data[p * a.row + (j0 + j) * a.col];
    }
    for (int64_t j = 0; j < columns; ++j) put(j0 + j, sums[j]);
  }
}

/// What follows the product, on `rows` rows of n values that lie `ld` apart.
template <class T>
struct Epilogue {
  const T* bias;  // or null
  Activation activation;
  T *out, *pre;   // pre or null, laid out like out
  int64_t ld;

  bool empty() const { return !bias && !pre && activation == Activation::none; }

  void operator()(int64_t i0, int64_t j0, int64_t rows, int64_t n) const {
    for (int64_t i = i0; i < i0 + rows; ++i) {
      T* row = out + i * ld + j0;
      if (bias)
        for (int64_t j = 0; j < n; ++j) row[j] += bias[j0 + j];
      if (pre) std::copy_n(row, n, pre + i * ld + j0);
      activate(row, n);
    }
  }

  void activate(T* row, int64_t n) const {
    switch (activation) {
      case Activation::none: break;
      case Activation::relu: apply<functor::Relu>(row, n); break;
      case Activation::gelu_tanh: apply<functor::GeluTanh>(row, n); break;
      case Activation::gelu_erf: apply<functor::GeluErf>(row, n); break;
      case Activation::silu: apply<functor::Silu>(row, n); break;
    }
  }

  template <class F>
  static void apply(T* row, int64_t n) {
    for (int64_t j = 0; j < n; ++j) row[j] = F::value(row[j], functor::Params<T>{});
  }
};

/// Where matrix number `index` of a batch starts: walks the batch dims of out's shape with the operand's strides.
int64_t batch_offset(int64_t index, const Shape& shape, const Strides& strides) {
  int64_t offset = 0;
  for (int d = shape.rank() - 3; d >= 0; index /= shape[d--]) offset += index % shape[d] * strides[d];
  return offset;
}

template <class T>
void product(const Tensor& a, const Tensor& b, const Tensor& bias, const MatmulArgs& args, Tensor& pre, Tensor& out) {
  const int rank = out.dim();
  const int64_t m = out.size(-2), n = out.size(-1), k = a.size(-1);
  const T alpha = T(args.alpha), beta = T(args.beta);
  const auto view = [&](const Tensor& x) { return MatrixView<T>{x.data<T>(), x.strides()[rank - 2], x.strides()[rank - 1]}; };
  const MatrixView<T> first_a = view(a), first_b = view(b);
  T *const first_out = out.data<T>(), *const first_pre = pre.defined() ? pre.data<T>() : nullptr;
  const T* const shift = bias.defined() ? bias.data<T>() : nullptr;
  const bool vector = (m == 1 || n == 1) && m * n * k > 256;
  Panels panels(m, n, k);
  if (vector) {  // memory-bound: pieces of the one long side
    panels.high = std::min<int64_t>(m, 512), panels.wide = std::min<int64_t>(n, 512);
    panels.rows = (m + panels.high - 1) / panels.high, panels.columns = (n + panels.wide - 1) / panels.wide;
  }
  const int64_t per_matrix = panels.rows * panels.columns, matrices = out.numel() / (m * n);
  const int64_t work = panels.high * panels.wide * (k + 1);
  parallel_for(matrices * per_matrix, std::max<int64_t>(1, (vector ? 1 << 15 : fork_work) / work), [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t matrix = unit / per_matrix, panel = unit % per_matrix;
      const int64_t i = panel / panels.columns * panels.high, j = panel % panels.columns * panels.wide;
      const int64_t high = std::min(panels.high, m - i), wide = std::min(panels.wide, n - j);
      MatrixView<T> pa = first_a.at(i, 0), pb = first_b.at(0, j);
      pa.data += batch_offset(matrix, out.shape(), a.strides());
      pb.data += batch_offset(matrix, out.shape(), b.strides());
      T* const c = first_out + matrix * m * n;
      T* const corner = c + i * n + j;
      if (vector && m == 1) {
        vector_times_matrix<T>(wide, k, alpha, pa.data, pa.col, pb, beta, corner, 1);
      } else if (vector) {  // the transposed product
        vector_times_matrix<T>(high, k, alpha, pb.data, pb.row, {pa.data, pa.col, pa.row}, beta, corner, 1);
      } else {
        gemm<T>(high, wide, k, alpha, pa, pb, beta, corner, n);
      }
      const Epilogue<T> finish{shift, args.activation, c, first_pre ? first_pre + matrix * m * n : nullptr, n};
      if (!finish.empty()) finish(i, j, high, wide);
    }
  });
}

/// x in f32; dims that are only repeated (stride 0) are converted once.
Tensor to_f32(const Tensor& x) {
  Tensor once = x;
  for (int d = 0; d < x.dim(); ++d)
    if (x.strides()[d] == 0 && x.shape()[d] > 1) once = once.narrow(d, 0, 1);
  return once.to(f32).expand(x.shape());
}

}  // namespace

void matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const MatmulArgs& args, Tensor& pre, Tensor& out) {
  if (out.numel() == 0) return;
  if (out.dtype() == f64) return product<double>(a, b, bias, args, pre, out);
  if (out.dtype() == f32) return product<float>(a, b, bias, args, pre, out);
  LOCKSTEP_CHECK(out.dtype() == f16 || out.dtype() == bf16, "[matmul] expected a floating dtype, got ", out.dtype());
  // In f32, rounded once.
  Tensor wide = args.beta != 0 ? out.to(f32) : empty(out.shape());
  Tensor wide_pre = pre.defined() ? empty(pre.shape()) : Tensor();
  product<float>(to_f32(a), to_f32(b), bias.defined() ? bias.to(f32) : Tensor(), args, wide_pre, wide);
  out.copy_(wide);
  if (pre.defined()) pre.copy_(wide_pre);
}

}  // namespace lockstep::on_cpu
