#pragma once
// Convolutions of signals (N, C, L), images (N, C, H, W) and volumes (N, C, D, H, W). The template argument n is the
// number of spatial dims. Pooling is in nn/pool.h.
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

/// Helpers of pooling and convolution layers.
namespace pools {
/// The type of a kernel size, stride or padding for n spatial dims: int64_t, Pair or Triple.
template <int n> struct SizeOf { using type = Triple; };  ///< for n = 3
template <> struct SizeOf<1> { using type = int64_t; };   ///< for n = 1
template <> struct SizeOf<2> { using type = Pair; };      ///< for n = 2
/// A kernel size, stride or padding for n spatial dims.
template <int n> using Size = typename SizeOf<n>::type;
/// Converts a size to one number per spatial dim.
inline Dims dims_of(int64_t size) { return {size}; }
inline Dims dims_of(const Dims& sizes) { return sizes; }
}  // namespace pools

namespace convs {
/// Shape of the weight. Error unless sizes are positive and groups divides both channel counts.
Shape shape_of(const std::string& layer, int64_t in, int64_t out, int64_t groups, const Dims& kernel, bool transposed);
/// Initialises weight and bias as PyTorch does: U(-b, b) with b = 1 / sqrt(fan in).
void start(const Variable& weight, const Variable& bias);
/// Returns the text of a layer's options() from its weight's shape and its arguments.
std::string text(const Shape& weight, const ConvArgs& args, bool transposed);

/// Base of Conv and ConvTranspose.
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

/// Cross-correlation, as in all frameworks: x (N, in, ...) gives (N, out, ...). weight (out, in / groups, kernel...),
/// bias (out).
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
using Conv1d = Conv<1>;  ///< input (N, C, L)
using Conv2d = Conv<2>;  ///< input (N, C, H, W)
using Conv3d = Conv<3>;  ///< input (N, C, D, H, W)

/// Transposed convolution, i.e. the input gradient of a Conv as a layer: x (N, in, ...) gives (N, out, ...). weight
/// (in, out / groups, kernel...), bias (out).
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
using ConvTranspose1d = ConvTranspose<1>;  ///< input (N, C, L)
using ConvTranspose2d = ConvTranspose<2>;  ///< input (N, C, H, W)
using ConvTranspose3d = ConvTranspose<3>;  ///< input (N, C, D, H, W)

}  // namespace lockstep::nn
