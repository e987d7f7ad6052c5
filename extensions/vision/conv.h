#pragma once
// 3-d and transposed convolutions, computed by conv2d and its gradients, and layers of them: for signals (N, C, L),
// images (N, C, H, W) and volumes (N, C, D, H, W). Options of a 3-d convolution have three values: for depth, height
// and width. Below, (T, R, S) is the kernel's depth, height and width.
#include "autograd/ops.h"
#include "nn/conv.h"

namespace lockstep {

/// Transposed convolution, the gradient of conv2d with respect to its input: x (N, C, H, W), w (C, K / groups, R, S),
/// bias (K) or undefined. Returns (N, K, P, Q), where
/// P = (H - 1) stride - 2 padding + dilation (R - 1) + output_padding + 1, and Q likewise.
Tensor conv_transpose2d(const Tensor& x, const Tensor& w, const Tensor& bias = {}, const ConvArgs& args = {},
                        const Dims& output_padding = {0, 0});
Variable conv_transpose2d(const Variable& x, const Variable& w, const Variable& bias = {}, const ConvArgs& args = {},
                          const Dims& output_padding = {0, 0});

/// Default options of a 3-d convolution: stride 1, no padding, no dilation.
inline ConvArgs conv_args3() { return {.stride = {1, 1, 1}, .padding = {0, 0, 0}, .dilation = {1, 1, 1}}; }

/// 3-d convolution: x (N, C, D, H, W), kernel w (K, C / groups, T, R, S), bias (K) or undefined. Returns (N, K, ...).
Variable conv3d(const Variable& x, const Variable& w, const Variable& bias = {}, const ConvArgs& args = conv_args3());
/// Transposed conv3d: x (N, C, D, H, W), kernel w (C, K / groups, T, R, S), bias (K) or undefined. Returns (N, K, ...).
Variable conv_transpose3d(const Variable& x, const Variable& w, const Variable& bias = {},
                          const ConvArgs& args = conv_args3(), const Dims& output_padding = {0, 0, 0});
/// Transposed 1-d convolution: x (N, C, length), kernel w (C, K / groups, kernel length), bias (K) or undefined.
Variable conv_transpose1d(const Variable& x, const Variable& w, const Variable& bias = {}, int64_t stride = 1,
                          int64_t padding = 0, int64_t output_padding = 0, int64_t dilation = 1, int64_t groups = 1);

namespace nn {

/// One size for all dims, or (depth, height, width).
struct Triple {
  Triple(int64_t all) : depth(all), height(all), width(all) {}  // NOLINT: implicit on purpose
  Triple(int64_t d, int64_t h, int64_t w) : depth(d), height(h), width(w) {}
  int64_t depth, height, width;
  operator Dims() const { return {depth, height, width}; }  // NOLINT
};

/// The type of a kernel size, stride or padding for 3 spatial dims.
template <> struct pools::SizeOf<3> { using type = Triple; };

/// Conv for volumes: x (N, in, D, H, W) gives (N, out, ...).
template <> struct Conv<3> : convs::AnyConv<Conv<3>, false> {
  struct Options {
    int64_t in, out;
    Triple kernel = 3, stride = 1, padding = 0, dilation = 1;
    int64_t groups = 1;
    bool bias = true;
  };
  explicit Conv(const Options& o) : convs::AnyConv<Conv, false>("Conv3d", o) {}
  Variable forward(const Variable& x) { return conv3d(x, weight, bias, args); }
  std::string kind() const override { return "Conv3d"; }
};
using Conv3d = Conv<3>;  ///< input (N, C, D, H, W)

/// Transposed convolution, i.e. the input gradient of a Conv as a layer: x (N, in, ...) gives (N, out, ...). weight
/// (in, out / groups, kernel...), bias (out).
template <int n> struct ConvTranspose : convs::AnyConv<ConvTranspose<n>, true> {
  struct Options {
    int64_t in, out;
    pools::Size<n> kernel = 3, stride = 1, padding = 0, output_padding = 0, dilation = 1;
    int64_t groups = 1;
    bool bias = true;
  };
  explicit ConvTranspose(const Options& o)
      : convs::AnyConv<ConvTranspose, true>(str("ConvTranspose", n, "d"), o),
        output_padding(pools::dims_of(o.output_padding)) {}
  Variable forward(const Variable& x) {
    const ConvArgs& a = this->args;
    if constexpr (n == 1)
      return conv_transpose1d(x, this->weight, this->bias, a.stride[0], a.padding[0], output_padding[0], a.dilation[0],
                              a.groups);
    else if constexpr (n == 2) return conv_transpose2d(x, this->weight, this->bias, a, output_padding);
    else return conv_transpose3d(x, this->weight, this->bias, a, output_padding);
  }
  std::string kind() const override { return str("ConvTranspose", n, "d"); }
  Dims output_padding;
};
using ConvTranspose1d = ConvTranspose<1>;  ///< input (N, C, L)
using ConvTranspose2d = ConvTranspose<2>;  ///< input (N, C, H, W)
using ConvTranspose3d = ConvTranspose<3>;  ///< input (N, C, D, H, W)

}  // namespace nn
}  // namespace lockstep
