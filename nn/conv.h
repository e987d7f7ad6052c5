#pragma once
// Convolutions of signals (N, C, L), images (N, C, H, W) and volumes (N, C, D, H, W): n is the number of dims behind C.
// Pooling is in nn/pool.h.
#include "autograd/conv_volumes.h"
#include "nn/module.h"

namespace lockstep::nn {

/// One size for both dims, or (height, width).
struct Pair {
  Pair(int64_t both) : height(both), width(both) {}  // NOLINT: implicit on purpose
  Pair(int64_t h, int64_t w) : height(h), width(w) {}
  int64_t height, width;
  operator Dims() const { return {height, width}; }  // NOLINT
};

/// One size for all dims, or (depth, height, width).
struct Triple {
  Triple(int64_t all) : depth(all), height(all), width(all) {}  // NOLINT: implicit on purpose
  Triple(int64_t d, int64_t h, int64_t w) : depth(d), height(h), width(w) {}
  int64_t depth, height, width;
  operator Dims() const { return {depth, height, width}; }  // NOLINT
};

namespace pools {
template <int n> struct SizeOf { using type = Triple; };
template <> struct SizeOf<1> { using type = int64_t; };
template <> struct SizeOf<2> { using type = Pair; };
template <int n> using Size = typename SizeOf<n>::type;
inline Dims dims_of(int64_t size) { return {size}; }
inline Dims dims_of(const Dims& sizes) { return sizes; }
}  // namespace pools

namespace convs {
/// Of a weight. Error unless groups divide the channels.
Shape shape_of(const std::string& layer, int64_t in, int64_t out, int64_t groups, const Dims& kernel, bool transposed);
/// PyTorch's initialisation of weight and bias.
void start(const Variable& weight, const Variable& bias);
std::string text(const Shape& weight, const ConvArgs& args, bool transposed);

/// What a convolution and its gradient share.
template <class Derived, int n, bool transposed> struct AnyConv : Layer<Derived> {
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string kind() const override { return str(transposed ? "ConvTranspose" : "Conv", n, "d"); }
  std::string options() const override { return text(weight.shape(), args, transposed); }

  Variable weight, bias;
  ConvArgs args;

 protected:
  explicit AnyConv(const auto& o)
      : args{.stride = pools::dims_of(o.stride),
             .padding = pools::dims_of(o.padding),
             .dilation = pools::dims_of(o.dilation),
             .groups = o.groups} {
    const Dims kernel = pools::dims_of(o.kernel);
    weight = this->parameter(shape_of(AnyConv::kind(), o.in, o.out, o.groups, kernel, transposed));
    if (o.bias) bias = this->parameter({o.out});
    start(weight, bias);
  }
};
}  // namespace convs

/// weight (out, in / groups, kernel...), bias (out)
template <int n> struct Conv : convs::AnyConv<Conv<n>, n, false> {
  struct Options {
    int64_t in, out;
    pools::Size<n> kernel = 3, stride = 1, padding = 0, dilation = 1;
    int64_t groups = 1;
    bool bias = true;
  };
  explicit Conv(const Options& o) : convs::AnyConv<Conv, n, false>(o) {}
  Variable forward(const Variable& x) {
    const ConvArgs& a = this->args;
    if constexpr (n == 1)
      return conv1d(x, this->weight, this->bias, a.stride[0], a.padding[0], a.dilation[0], a.groups);
    else if constexpr (n == 2) return conv2d(x, this->weight, this->bias, a);
    else return conv3d(x, this->weight, this->bias, a);
  }
};
using Conv1d = Conv<1>;
using Conv2d = Conv<2>;
using Conv3d = Conv<3>;

/// The gradient of a convolution as a layer: weight (in, out / groups, kernel...), bias (out)
template <int n> struct ConvTranspose : convs::AnyConv<ConvTranspose<n>, n, true> {
  struct Options {
    int64_t in, out;
    pools::Size<n> kernel = 3, stride = 1, padding = 0, output_padding = 0, dilation = 1;
    int64_t groups = 1;
    bool bias = true;
  };
  explicit ConvTranspose(const Options& o)
      : convs::AnyConv<ConvTranspose, n, true>(o), output_padding(pools::dims_of(o.output_padding)) {}
  Variable forward(const Variable& x) {
    const ConvArgs& a = this->args;
    if constexpr (n == 1)
      return conv_transpose1d(x, this->weight, this->bias, a.stride[0], a.padding[0], output_padding[0], a.dilation[0],
                              a.groups);
    else if constexpr (n == 2) return conv_transpose2d(x, this->weight, this->bias, a, output_padding);
    else return conv_transpose3d(x, this->weight, this->bias, a, output_padding);
  }
  Dims output_padding;
};
using ConvTranspose1d = ConvTranspose<1>;
using ConvTranspose2d = ConvTranspose<2>;
using ConvTranspose3d = ConvTranspose<3>;

}  // namespace lockstep::nn
