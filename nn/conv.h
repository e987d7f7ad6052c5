#pragma once
// Convolutions of signals (N, C, L) and images (N, C, H, W), where the template argument n is the number of spatial
// dims, and pooling of images.
#include <optional>

#include "nn/module.h"

namespace lockstep::nn {

/// One size for both dims, or (height, width).
struct Pair {
  Pair(int64_t both) : height(both), width(both) {}  // NOLINT: implicit on purpose
  Pair(int64_t h, int64_t w) : height(h), width(w) {}
  int64_t height, width;
  operator Dims() const { return {height, width}; }  // NOLINT
};

/// Helpers of pooling and convolution layers.
namespace pools {
/// The type of a kernel size, stride or padding for n spatial dims.
template <int n> struct SizeOf;
template <> struct SizeOf<1> { using type = int64_t; };  ///< for n = 1
template <> struct SizeOf<2> { using type = Pair; };     ///< for n = 2
/// A kernel size, stride or padding for n spatial dims.
template <int n> using Size = typename SizeOf<n>::type;
/// Converts a size to one number per spatial dim.
inline Dims dims_of(int64_t size) { return {size}; }
inline Dims dims_of(const Dims& sizes) { return sizes; }
}  // namespace pools

namespace convs {
/// Shape of the weight: (out, in / groups, kernel...), or (in, out / groups, kernel...) if transposed. Error unless
/// sizes are positive and groups divides both channel counts.
Shape shape_of(const std::string& layer, int64_t in, int64_t out, int64_t groups, const Dims& kernel, bool transposed);
/// Initialises weight and bias as PyTorch does: U(-b, b) with b = 1 / sqrt(fan in).
void start(const Variable& weight, const Variable& bias);
/// Returns the text of a layer's options() from its weight's shape and its arguments.
std::string text(const Shape& weight, const ConvArgs& args, bool transposed);

/// Base of convolution layers.
template <class Derived, bool transposed> struct AnyConv : Layer<Derived> {
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override { return text(weight.shape(), args, transposed); }

  Variable weight, bias;
  ConvArgs args;

 protected:
  /// Starts with the parameters of layer `kind` with options `o`.
  AnyConv(const std::string& kind, const auto& o)
      : args{.stride = pools::dims_of(o.stride),
             .padding = pools::dims_of(o.padding),
             .dilation = pools::dims_of(o.dilation),
             .groups = o.groups} {
    const Dims kernel = pools::dims_of(o.kernel);
    weight = this->parameter(shape_of(kind, o.in, o.out, o.groups, kernel, transposed));
    if (o.bias) bias = this->parameter({o.out});
    start(weight, bias);
  }
};
}  // namespace convs

/// Cross-correlation, as in all frameworks: x (N, in, ...) gives (N, out, ...). weight (out, in / groups, kernel...),
/// bias (out).
template <int n> struct Conv : convs::AnyConv<Conv<n>, false> {
  struct Options {
    int64_t in, out;
    pools::Size<n> kernel = 3, stride = 1, padding = 0, dilation = 1;
    int64_t groups = 1;
    bool bias = true;
  };
  explicit Conv(const Options& o) : convs::AnyConv<Conv, false>(str("Conv", n, "d"), o) {}
  Variable forward(const Variable& x) {
    const ConvArgs& a = this->args;
    if constexpr (n == 2) return conv2d(x, this->weight, this->bias, a);
    else return conv1d(x, this->weight, this->bias, a.stride[0], a.padding[0], a.dilation[0], a.groups);
  }
  std::string kind() const override { return str("Conv", n, "d"); }
};
using Conv1d = Conv<1>;  ///< input (N, C, L)
using Conv2d = Conv<2>;  ///< input (N, C, H, W)

// --- pooling of images; the stride defaults to the kernel size ---
namespace pools {
/// Converts options of a pooling layer to the arguments of the pooling functions.
template <class Size>
PoolArgs args_of(const Size& kernel, const std::optional<Size>& stride, const Size& padding, const Size& dilation,
                 bool ceil_mode) {
  return {.kernel = dims_of(kernel),
          .stride = dims_of(stride.value_or(kernel)),
          .padding = dims_of(padding),
          .dilation = dims_of(dilation),
          .ceil_mode = ceil_mode};
}
/// Base of pooling layers.
template <class Derived> struct AnyPool : Layer<Derived> {
  std::string options() const override { return str("kernel ", args.kernel, ", stride ", args.stride); }
  PoolArgs args;

 protected:
  explicit AnyPool(PoolArgs args) : args(std::move(args)) {}
};
}  // namespace pools

/// Maximum of each window.
struct MaxPool2d : pools::AnyPool<MaxPool2d> {
  struct Options {
    Pair kernel = 2;
    std::optional<Pair> stride = {};
    Pair padding = 0, dilation = 1;
    bool ceil_mode = false;
  };
  MaxPool2d() : MaxPool2d(Options()) {}
  explicit MaxPool2d(const Options& o)
      : AnyPool(pools::args_of(o.kernel, o.stride, o.padding, o.dilation, o.ceil_mode)) {}
  Variable forward(const Variable& x) { return max_pool2d(x, args); }
  /// Returns the positions of the maxima, too.
  VariableIndices with_indices(const Variable& x) { return max_pool2d_indices(x, args); }
};

}  // namespace lockstep::nn
