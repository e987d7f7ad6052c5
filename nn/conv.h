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

template <int n> struct ConvOptions {
  int64_t in, out;
  pools::Size<n> kernel = 3, stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};
template <int n> struct ConvTransposeOptions {
  int64_t in, out;
  pools::Size<n> kernel = 3, stride = 1, padding = 0, output_padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

namespace convs {
/// Of a weight. Error unless groups divide the channels.
Shape shape_of(const std::string& layer, int64_t in, int64_t out, int64_t groups, const Dims& kernel, bool transposed);
/// PyTorch's initialisation of weight and bias.
void start(const Variable& weight, const Variable& bias);
std::string text(const Shape& weight, const ConvArgs& args, bool transposed);
}  // namespace convs

/// weight (out, in / groups, kernel...), bias (out)
template <class Derived, int n, class O = ConvOptions<n>> struct Conv : Layer<Derived> {
  using Options = O;
  static constexpr bool transposed = !std::is_same_v<O, ConvOptions<n>>;

  explicit Conv(const O& o)
      : args{.stride = pools::dims_of(o.stride),
             .padding = pools::dims_of(o.padding),
             .dilation = pools::dims_of(o.dilation),
             .groups = o.groups} {
    const std::string layer = str(transposed ? "ConvTranspose" : "Conv", n, "d");
    weight = this->parameter(convs::shape_of(layer, o.in, o.out, o.groups, pools::dims_of(o.kernel), transposed));
    if (o.bias) bias = this->parameter({o.out});
    convs::start(weight, bias);
  }
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override { return convs::text(weight.shape(), args, transposed); }

  Variable weight, bias;
  ConvArgs args;
};
struct Conv1d : Conv<Conv1d, 1> {
  using Conv::Conv;
  Variable forward(const Variable& x) {
    return conv1d(x, weight, bias, args.stride[0], args.padding[0], args.dilation[0], args.groups);
  }
};
struct Conv2d : Conv<Conv2d, 2> {
  using Conv::Conv;
  Variable forward(const Variable& x) { return conv2d(x, weight, bias, args); }
};
struct Conv3d : Conv<Conv3d, 3> {
  using Conv::Conv;
  Variable forward(const Variable& x) { return conv3d(x, weight, bias, args); }
};

/// The gradient of a convolution as a layer: weight (in, out / groups, kernel...), bias (out)
template <class Derived, int n> struct ConvTranspose : Conv<Derived, n, ConvTransposeOptions<n>> {
  explicit ConvTranspose(const ConvTransposeOptions<n>& o)
      : Conv<Derived, n, ConvTransposeOptions<n>>(o), output_padding(pools::dims_of(o.output_padding)) {}
  Dims output_padding;
};
struct ConvTranspose1d : ConvTranspose<ConvTranspose1d, 1> {
  using ConvTranspose::ConvTranspose;
  Variable forward(const Variable& x) {
    return conv_transpose1d(x, weight, bias, args.stride[0], args.padding[0], output_padding[0], args.dilation[0],
                            args.groups);
  }
};
struct ConvTranspose2d : ConvTranspose<ConvTranspose2d, 2> {
  using ConvTranspose::ConvTranspose;
  Variable forward(const Variable& x) { return conv_transpose2d(x, weight, bias, args, output_padding); }
};
struct ConvTranspose3d : ConvTranspose<ConvTranspose3d, 3> {
  using ConvTranspose::ConvTranspose;
  Variable forward(const Variable& x) { return conv_transpose3d(x, weight, bias, args, output_padding); }
};

}  // namespace lockstep::nn
