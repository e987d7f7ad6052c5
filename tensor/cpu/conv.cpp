// Convolution, where no extension has a library that computes it (conv_backend.h): images are unfolded (im2col) and
// multiplied.
//
//   columns = the unfolded image: one row for each weight (c, r, s), one column for each output position
//   out = W columns      grad columns = W^T grad out, added back to the image      grad W = grad out columns^T
//
// How the work is divided depends on the shape alone. f16 and bf16 are computed in f32.
#include <algorithm>
#include <atomic>

#include "tensor/conv_backend.h"
#include "tensor/convert.h"
#include "tensor/cpu/gemm.h"
#include "tensor/cpu/parallel.h"
#include "tensor/kernels.h"
#include "tensor/layout.h"
#include "tensor/ops.h"

namespace lockstep::on_cpu {
namespace {

/// The sizes of one group of channels, and the functions that unfold an image (im2col) and fold it back.
struct Sizes : ConvSizes {
  ConvArgs args;

  Sizes(const Tensor& x, const Tensor& weight, const Tensor& y, const ConvArgs& a)
      : ConvSizes(of(x, weight, y, a.groups)), args(a) {}

  int64_t depth() const { return c * r * s; }
  int64_t places() const { return p * q; }

  /// Calls fn(row, place, from, count, step) for each row of the unfolded image and each line of the output. In this
  /// line, `count` output positions from `place` on read x[from], x[from + step], ... All others read only padding.
  template <class Fn> void each_line(Fn&& fn) const {
    for (int64_t ci = 0, row = 0; ci < c; ++ci)
      for (int64_t ri = 0; ri < r; ++ri)
        for (int64_t si = 0; si < s; ++si, ++row) {
          const int64_t shift = si * args.dilation[1] - args.padding[1], step = args.stride[1];
          const int64_t first = shift >= 0 ? 0 : (-shift + step - 1) / step;
          const int64_t last = w - 1 - shift < 0 ? -1 : std::min(q - 1, (w - 1 - shift) / step);
          for (int64_t pi = 0; pi < p; ++pi) {
            const int64_t y = pi * args.stride[0] + ri * args.dilation[0] - args.padding[0];
            if (y < 0 || y >= h || last < first) continue;
            fn(row, pi * q + first, (ci * h + y) * w + first * step + shift, last - first + 1, step);
          }
        }
  }

  template <class T> void unfold(const T* image, T* columns) const {
    std::fill_n(columns, depth() * places(), T(0));
    each_line([&](int64_t row, int64_t place, int64_t from, int64_t count, int64_t step) {
      for (int64_t i = 0; i < count; ++i) columns[row * places() + place + i] = image[from + i * step];
    });
  }
  template <class T> void fold_add(const T* columns, T* image) const {
    each_line([&](int64_t row, int64_t place, int64_t to, int64_t count, int64_t step) {
      for (int64_t i = 0; i < count; ++i) image[to + i * step] += columns[row * places() + place + i];
    });
  }
};

/// Calls fn(unit, columns, scratch) for unit = 0 to units - 1, on several threads. Each thread has two buffers:
/// `columns` holds an unfolded image, `scratch` is the scratch memory of a matrix product of size m x n x k.
template <class T, class Fn>
void with_columns(int64_t units, const Sizes& z, int64_t m, int64_t n, int64_t k, Fn&& fn) {
  const int64_t size = z.depth() * z.places() + gemm_scratch<T>(m, n, k);
  const Tensor buffers = empty({std::min<int64_t>(get_threads(), units), size}, {.dtype = dtype_of<T>});
  std::atomic<int64_t> taken{0};
  parallel_for(units, 1, [&](int64_t begin, int64_t end) {
    T* const columns = buffers.data<T>() + taken++ * size;
    for (int64_t i = begin; i < end; ++i) fn(i, columns, columns + z.depth() * z.places());
  });
}

template <class T>
void forward(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args, Tensor& out) {
  const Sizes z(x, w, out, args);
  with_columns<T>(z.n * z.groups, z, z.k, z.places(), z.depth(), [&](int64_t unit, T* columns, T* scratch) {
    const int64_t group = unit % z.groups;
    T* const to = out.data<T>() + unit * z.k * z.places();
    z.unfold(x.data<T>() + unit * z.c * z.h * z.w, columns);
    gemm<T, T>(z.k, z.places(), z.depth(), 1, {w.data<T>() + group * z.k * z.depth(), z.depth(), 1},
               {columns, z.places(), 1}, 0, to, z.places(), {}, scratch);
    if (bias.defined())
      for (int64_t k = 0; k < z.k; ++k)
        for (int64_t i = 0; i < z.places(); ++i) to[k * z.places() + i] += bias.data<T>()[group * z.k + k];
  });
}

template <class T> void grad_input(const Tensor& grad, const Tensor& w, const ConvArgs& args, Tensor& grad_x) {
  const Sizes z(grad_x, w, grad, args);
  with_columns<T>(z.n * z.groups, z, z.depth(), z.places(), z.k, [&](int64_t unit, T* columns, T* scratch) {
    gemm<T, T>(z.depth(), z.places(), z.k, 1, {w.data<T>() + unit % z.groups * z.k * z.depth(), 1, z.depth()},
               {grad.data<T>() + unit * z.k * z.places(), z.places(), 1}, 0, columns, z.places(), {}, scratch);
    T* const image = grad_x.data<T>() + unit * z.c * z.h * z.w;
    std::fill_n(image, z.c * z.h * z.w, T(0));
    z.fold_add(columns, image);
  });
}

template <class T>
void grad_weight(const Tensor& grad, const Tensor& x, const ConvArgs& args, Tensor& grad_w, Tensor& grad_bias) {
  const Sizes z(x, grad_w, grad, args);
  const int64_t chunks = std::min<int64_t>(8, z.n), weights = z.k * z.depth(), all = z.groups * z.k;
  const Tensor partial = empty({chunks, z.groups * weights + all}, {.dtype = dtype_of<T>});
  with_columns<T>(chunks * z.groups, z, z.k, z.depth(), z.places(), [&](int64_t unit, T* columns, T* scratch) {
    const int64_t chunk = unit / z.groups, group = unit % z.groups;
    T* const part = partial.data<T>() + chunk * (z.groups * weights + all);
    T* const sums = part + z.groups * weights + group * z.k;
    std::fill_n(sums, z.k, T(0));
    const int64_t begin = z.n * chunk / chunks, end = z.n * (chunk + 1) / chunks;
    for (int64_t n = begin; n < end; ++n) {
      const T* const g = grad.data<T>() + (n * z.groups + group) * z.k * z.places();
      z.unfold(x.data<T>() + (n * z.groups + group) * z.c * z.h * z.w, columns);
      gemm<T, T>(z.k, z.depth(), z.places(), 1, {g, z.places(), 1}, {columns, 1, z.places()}, n == begin ? 0 : 1,
                 part + group * weights, z.depth(), {}, scratch);
      if (grad_bias.defined())
        for (int64_t k = 0; k < z.k; ++k)
          for (int64_t i = 0; i < z.places(); ++i) sums[k] += g[k * z.places() + i];
    }
  });
  const T* const parts = partial.data<T>();
  const auto add_up = [&](Tensor& to, int64_t first) {
    std::fill_n(to.data<T>(), to.numel(), T(0));
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
      for (int64_t i = 0; i < to.numel(); ++i) to.data<T>()[i] += parts[chunk * (z.groups * weights + all) + first + i];
  };
  add_up(grad_w, 0);
  if (grad_bias.defined()) add_up(grad_bias, z.groups * weights);
}

/// 16-bit convolutions run on f32 copies and round the results once.
Tensor in_f32(const Tensor& x) { return x.defined() ? x.to(f32) : x; }
bool is_half(const Tensor& x) { return x.dtype() == f16 || x.dtype() == bf16; }

}  // namespace

void conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args, Tensor& out) {
  if (out.numel() == 0) return;
  if (is_half(x)) {
    Tensor wide = empty(out.shape());
    conv2d(in_f32(x), in_f32(w), in_f32(bias), args, wide);
    out.copy_(wide);
    return;
  }
  if (by_library(x.device(), &ConvBackend::forward, x, w, bias, args, out)) return;
  Tensor plain = out.is_contiguous() ? out : empty_like(out);
  dispatch<float, double>(x.dtype(), "conv2d", [&]<class T> { forward<T>(x.contiguous(), w, bias, args, plain); });
  if (!out.is_contiguous()) out.copy_(plain);
}

void conv2d_grad_input(const Tensor& grad, const Tensor& w, const ConvArgs& args, Tensor& grad_x) {
  if (grad_x.numel() == 0) return;
  if (is_half(grad)) {
    Tensor wide = empty(grad_x.shape());
    conv2d_grad_input(in_f32(grad), in_f32(w), args, wide);
    grad_x.copy_(wide);
    return;
  }
  if (by_library(grad.device(), &ConvBackend::grad_input, grad, w, args, grad_x)) return;
  Tensor plain = grad_x.is_contiguous() ? grad_x : empty_like(grad_x);
  dispatch<float, double>(grad.dtype(), "conv2d_grad_input",
                          [&]<class T> { grad_input<T>(grad.contiguous(), w, args, plain); });
  if (!grad_x.is_contiguous()) grad_x.copy_(plain);
}

void conv2d_grad_weight(const Tensor& grad, const Tensor& x, const ConvArgs& args, Tensor& grad_w, Tensor& grad_bias) {
  if (x.size(0) == 0) {
    grad_w.zero_();
    if (grad_bias.defined()) grad_bias.zero_();
    return;
  }
  if (is_half(grad)) {
    Tensor wide = empty(grad_w.shape()), wide_bias = grad_bias.defined() ? empty(grad_bias.shape()) : Tensor();
    conv2d_grad_weight(in_f32(grad), in_f32(x), args, wide, wide_bias);
    grad_w.copy_(wide);
    if (grad_bias.defined()) grad_bias.copy_(wide_bias);
    return;
  }
  if (by_library(grad.device(), &ConvBackend::grad_weight, grad, x, args, grad_w, grad_bias)) return;
  dispatch<float, double>(grad.dtype(), "conv2d_grad_weight",
                          [&]<class T> { grad_weight<T>(grad.contiguous(), x.contiguous(), args, grad_w, grad_bias); });
}

}  // namespace lockstep::on_cpu
