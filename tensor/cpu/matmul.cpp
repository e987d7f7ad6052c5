// Matrix product: out = activation(alpha * a b + beta * c + bias), batched.
//
// A large product uses all threads, small products of a batch one thread each. The choice does not change any bits.
// The operations after a product (adding the bias or c, activation) run on each part of it while it is in cache.
#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "tensor/cpu/gemm.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/pointwise_blocks.h"
#include "tensor/functors.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/storage.h"

namespace lockstep::on_cpu {
namespace {

constexpr int64_t small_product = 1 << 18;  // multiplications that justify a thread

/// For a matrix product that is the gradient of a unary operation's output: multiplies it by that operation's
/// derivative.
struct UnaryGrad {
  BlockFn run = nullptr;
  const PointwiseArgs* args = nullptr;
  const void* kept = nullptr;  // the operand that the derivative reads, shaped like out

  /// Multiplies each of n numbers g[i] by the derivative, which is computed from at[i].
  template <class T> void operator()(T* g, const T* at, int64_t n) const {
    const int64_t in_blocks = n / block_step * block_step;
    const void* in[] = {g, at};
    if (in_blocks > 0) run(in, g, in_blocks, *args);
    if (in_blocks == n) return;
    alignas(64) T last[2][block_step] = {};
    std::copy_n(g + in_blocks, n - in_blocks, last[0]), std::copy_n(at + in_blocks, n - in_blocks, last[1]);
    const void* rest[] = {last[0], last[1]};
    run(rest, last[0], block_step, *args);
    std::copy_n(last[0], n - in_blocks, g + in_blocks);
  }
};

/// The operations after a product: adding a bias or a matrix, activation, rounding to 16 bits. Each part of the product
/// is processed as soon as it is computed.
template <class T, class Out> struct Epilogue {
  static constexpr bool rounds = !std::is_same_v<T, Out>;

  const T* bias;  // optional
  Activation activation;
  Out *before, *out;  // the matrix before the activation (optional) and after it
  int64_t ld;         // row stride of before and out
  UnaryGrad unary = {};
  const Out* added = nullptr;  // shaped like out, or null

  bool empty() const { return !rounds && !bias && !before && activation == Activation::none && !unary.run && !added; }

  /// Applies the operations to `piece`, a part of the product. Stores the values before the activation in `before`, if
  /// that is not null, and the results in `out`. If results are rounded to 16 bits, `piece` is a separate buffer.
  /// Otherwise it is a part of `before` or, if `before` is null, of `out`.
  void operator()(int64_t i0, int64_t j0, int64_t rows, int64_t n, T* piece, int64_t piece_ld) const {
    for (int64_t i = 0; i < rows; ++i, piece += piece_ld) {
      const int64_t at = (i0 + i) * ld + j0;
      const T* shift = bias ? bias + j0 : nullptr;
      if (added) {
        prefetch(added + rows * ld + at, n);
        add_row(piece, std::exchange(shift, nullptr), added + at, n);
      }
      if constexpr (rounds) {
        if (before) {
          if (shift) apply(piece, shift, piece, n, [](T x) { return x; });
          round_row(piece, before + at, n);
        }
        if (!before || activation != Activation::none) activate(piece, before ? nullptr : shift, piece, n);
        round_row(piece, out + at, n);
      } else if (unary.run) {
        const T* const kept = static_cast<const T*>(unary.kept) + at;
        prefetch(kept + rows * ld, n);
        unary(piece, kept, n);
      } else {
        activate(piece, shift, out + at, n);
      }
    }
  }

  /// Prefetches n numbers from p on, which the operations on the next rows will read.
  template <class X> static void prefetch(const X* p, int64_t n) {
    for (int64_t j = 0; j < n; j += 64 / int64_t(sizeof(X))) __builtin_prefetch(p + j, 0, 2);
  }

  /// piece = (piece + shift) + more.
  static void add_row(T* piece, const T* shift, const Out* more, int64_t n) {
    const auto add = [&](int64_t j, auto count) {
      const Lanes<T> x = load(piece + j, count);
      store(piece + j, (shift ? x + load(shift + j, count) : x) + load(more + j, count), count);
    };
    constexpr Full<T> full;
    int64_t j = 0;
    for (; j + full <= n; j += full) add(j, full);
    if (j < n) add(j, int(n - j));
  }

  static void round_row(const T* from, Out* to, int64_t n) {
    constexpr Full<T> full;
    int64_t j = 0;
    for (; j + full <= n; j += full) store(to + j, load(from + j, full), full);
    if (j < n) store(to + j, load(from + j, int(n - j)), int(n - j));
  }

  void activate(T* from, const T* shift, T* to, int64_t n) const {
    switch (activation) {
      case Activation::none:
        if (from != to || shift) apply(from, shift, to, n, [](T x) { return x; });
        return;
      case Activation::relu: return apply(from, shift, to, n, value<functor::Relu>);
      case Activation::gelu_tanh: return apply(from, shift, to, n, value<functor::GeluTanh>);
      case Activation::gelu_erf: return apply(from, shift, to, n, value<functor::GeluErf>);
      case Activation::silu: return apply(from, shift, to, n, value<functor::Silu>);
    }
  }

  template <class F> static constexpr auto value = [](T x) { return F::value(x, functor::Params<T>{}); };

  template <class F> static void apply(T* from, const T* shift, T* to, int64_t n, F f) {
    if (from == to) {
      for (int64_t j = 0; j < n; ++j) to[j] = f(shift ? to[j] + shift[j] : to[j]);
      return;
    }
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      const T x = shift ? from[j] + shift[j] : from[j];
      from[j] = x;
      to[j] = f(x);
    }
  }
};

/// Offset of matrix `index` of a batch in an operand. `shape` is that of out, `strides` are the operand's.
int64_t batch_offset(int64_t index, const Shape& shape, const Strides& strides) {
  int64_t offset = 0;
  for (int d = shape.rank() - 3; d >= 0; index /= shape[d--]) offset += index % shape[d] * strides[d];
  return offset;
}

/// The product of every pair of matrices in a batch, and the operations after it. `wide`: an f32 copy of c, to which
/// the product is added before the sum is rounded to 16 bits; undefined if that is not needed.
template <class T, class In, class Out = In> struct Products {
  const Tensor &a, &b, &added, &bias, &pre, &out;
  const MatmulArgs& args;
  UnaryGrad unary = {};
  Tensor wide = {};
  int64_t m = out.size(-2), n = out.size(-1), k = a.size(-1), count = out.numel() / (m * n);
  int64_t ld = m > 1 ? out.strides()[out.dim() - 2] : n;  // more than n if rows are padded (never in a batch)
  T alpha = T(args.alpha), beta = T(added.defined() ? 0 : args.beta);

  MatrixView<In> view(const Tensor& x, int64_t index) const {
    return {x.data<In>() + batch_offset(index, out.shape(), x.strides()), x.strides()[out.dim() - 2],
            x.strides()[out.dim() - 1]};
  }
  T* product(int64_t index) const {
    if constexpr (std::is_same_v<T, Out>) return (pre.defined() ? pre : out).template data<T>() + index * m * n;
    return wide.defined() ? wide.template data<T>() + index * m * n : nullptr;
  }
  Epilogue<T, Out> epilogue(int64_t index) const {
    return {bias.defined() ? bias.data<T>() : nullptr,
            args.activation,
            pre.defined() ? pre.data<Out>() + index * m * n : nullptr,
            out.data<Out>() + index * m * n,
            ld,
            unary,
            added.defined() ? added.data<Out>() + index * m * n : nullptr};
  }

  void one(int64_t index, T* scratch) const {
    const Epilogue<T, Out> after = epilogue(index);
    gemm<T, In>(m, n, k, alpha, view(a, index), view(b, index), beta, product(index), wide.defined() ? n : ld,
                after.empty() ? Finish<T>() : Finish<T>(std::cref(after)), scratch);
  }

  void matrices() const {
    const int64_t threads = get_threads(), work = m * n * k + 1;
    if (count == 1 || (count < 2 * threads && work > small_product)) {
      for (int64_t index = 0; index < count; ++index) one(index, nullptr);
      return;
    }
    const int64_t size = gemm_scratch<T, In>(m, n, k, product(0) != nullptr);
    const Ref<Storage> scratch =
        size ? Storage::allocate(std::min(threads, count) * size * int64_t(sizeof(T)), cpu) : Ref<Storage>();
    std::atomic<int64_t> slot{0};
    parallel_for(count, small_product / work, [&](int64_t begin, int64_t end) {
      T* const own = scratch ? reinterpret_cast<T*>(scratch->data()) + slot++ * size : nullptr;
      for (int64_t index = begin; index < end; ++index) one(index, own);
    });
  }
};

/// Matrix products of integers, with wrap-around on overflow. Each row of out is computed as a sum of rows of b.
template <class T> void integer_products(const Tensor& a, const Tensor& b, Tensor& out) {
  using U = std::make_unsigned_t<T>;
  const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  const Tensor left = a.contiguous(), right = b.contiguous();
  const auto *x = static_cast<const U*>(left.raw_data()), *y = static_cast<const U*>(right.raw_data());
  auto* const to = static_cast<U*>(out.raw_data());
  parallel_for(out.numel() / n, small_product / (n * k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      U* const row = to + r * n;
      std::fill_n(row, n, U(0));
      for (int64_t i = 0; i < k; ++i) {
        const U factor = x[r * k + i], *const from = y + (r / m * k + i) * n;
        for (int64_t j = 0; j < n; ++j) row[j] = U(row[j] + U(factor * from[j]));
      }
    }
  });
}

}  // namespace

void matmul(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& bias, const MatmulArgs& args, Tensor& pre,
            Tensor& out) {
  if (out.numel() == 0) return;
  if (!is_floating(out.dtype()))
    return dispatch<int64_t, int32_t, int8_t, uint8_t>(out.dtype(), "matmul",
                                                       [&]<class T> { integer_products<T>(a, b, out); });
  // If c is not stored in out and beta is 1, c is added after the product. Otherwise c is first copied to out, and the
  // product is added to beta * out.
  const bool behind = args.beta == 1 && c.raw_data() != out.raw_data();
  const Tensor added = behind ? c : Tensor();
  if (args.beta != 0 && !behind && c.raw_data() != out.raw_data()) out.copy_(c);
  const auto run = [&]<class T>(const Tensor& x, const Tensor& y, const Tensor& shift, const Tensor& before,
                                const Tensor& to) { Products<T, T>{x, y, added, shift, before, to, args}.matrices(); };
  if (out.dtype() == f64) return run.operator()<double>(a, b, bias, pre, out);
  if (out.dtype() == f32 && a.dtype() == f16)
    return Products<float, Half, float>{a, b, added, bias, pre, out, args}.matrices();
  if (out.dtype() == f32 && a.dtype() == bf16)
    return Products<float, BFloat16, float>{a, b, added, bias, pre, out, args}.matrices();
  if (out.dtype() == f32) return run.operator()<float>(a, b, bias, pre, out);
  LOCKSTEP_CHECK(out.dtype() == f16 || out.dtype() == bf16, "[matmul] expected a floating dtype, got ", out.dtype());
  // Computed in f32 and rounded once.
  const Tensor wide = args.beta != 0 && !behind ? out.to(f32) : Tensor(),
               shift = bias.defined() ? bias.to(f32) : Tensor();
  if (out.dtype() == f16) Products<float, Half>{a, b, added, shift, pre, out, args, {}, wide}.matrices();
  else Products<float, BFloat16>{a, b, added, shift, pre, out, args, {}, wide}.matrices();
}

void matmul_unary_grad(const Tensor& a, const Tensor& b, PointwiseOp op, const PointwiseArgs& args, const Tensor& kept,
                       Tensor& out) {
  if (out.numel() == 0) return;
  const Tensor none;
  const MatmulArgs plain;
  const UnaryGrad unary{pointwise_entry(op).functions[int(PointwisePart::grad0)][int(compute_type(out.dtype()))], &args,
                        kept.raw_data()};
  const auto run = [&]<class T>() { Products<T, T>{a, b, none, none, none, out, plain, unary}.matrices(); };
  out.dtype() == f64 ? run.operator()<double>() : run.operator()<float>();
}

}  // namespace lockstep::on_cpu
