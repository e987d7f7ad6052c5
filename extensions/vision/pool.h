#pragma once
// More pooling, composed of max_pool2d, avg_pool2d and adaptive_avg_pool2d, and layers of it: for signals (N, C,
// L), images (N, C, H, W) and volumes (N, C, D, H, W). Options have one value per dim after C. Meaning as in
// torch.nn.functional. LocalResponseNorm, which pools over channels.
#include <optional>

#include "autograd/ops.h"
#include "extensions/vision/average.h"
#include "extensions/vision/conv.h"
#include "nn/conv.h"

namespace lockstep {

/// Maximum of each window; padding counts as -inf.
Variable max_pool(const Variable& x, const PoolArgs& args);
/// max_pool() with the positions of the maxima: i64, flat over the dims after C (PyTorch's return_indices).
VariableIndices max_pool_indices(const Variable& x, const PoolArgs& args);
/// Mean of each window.
Variable avg_pool(const Variable& x, const PoolArgs& args);
/// Mean over windows that are chosen so that the dims after C get these sizes; a size of -1 keeps that of x.
Variable adaptive_avg_pool(const Variable& x, const Dims& sizes);
/// Maximum over the windows of adaptive_avg_pool(), with positions as in max_pool_indices().
VariableIndices adaptive_max_pool(const Variable& x, const Dims& sizes);
/// (sum of x^p)^(1/p) over each window; p > 0. Error if there is padding.
Variable lp_pool(const Variable& x, double p, const PoolArgs& args);
/// Writes the values of x to the positions from max_pool_indices(), and zeros elsewhere. `sizes`: the sizes of the
/// result's dims after C. If a position occurs more than once, its last value is written.
Variable max_unpool(const Variable& x, const Tensor& indices, const Dims& sizes);

/// The template argument n of layers is the number of spatial dims. In all Options the stride defaults to the kernel
/// size.
namespace nn {

/// Maximum of each window.
template <int n> struct MaxPool : pools::AnyPool<MaxPool<n>> {
  struct Options {
    pools::Size<n> kernel = 2;
    std::optional<pools::Size<n>> stride = {};
    pools::Size<n> padding = 0, dilation = 1;
    bool ceil_mode = false;
  };
  explicit MaxPool(const Options& o = Options())
      : pools::AnyPool<MaxPool>(pools::args_of(o.kernel, o.stride, o.padding, o.dilation, o.ceil_mode)) {}
  Variable forward(const Variable& x) { return max_pool(x, this->args); }
  /// Returns the positions of the maxima, too, for MaxUnpool.
  VariableIndices with_indices(const Variable& x) { return max_pool_indices(x, this->args); }
  std::string kind() const override { return str("MaxPool", n, "d"); }
};
using MaxPool1d = MaxPool<1>;  ///< input (N, C, L)
using MaxPool3d = MaxPool<3>;  ///< input (N, C, D, H, W)

/// Mean of each window; with count_include_pad, padding counts as zeros.
template <int n> struct AvgPool : pools::AnyPool<AvgPool<n>> {
  struct Options {
    pools::Size<n> kernel = 2;
    std::optional<pools::Size<n>> stride = {};
    pools::Size<n> padding = 0;
    bool ceil_mode = false, count_include_pad = true;
  };
  explicit AvgPool(const Options& o = Options())
      : pools::AnyPool<AvgPool>(pools::args_of(o.kernel, o.stride, o.padding, pools::Size<n>(1), o.ceil_mode)) {
    this->args.count_include_pad = o.count_include_pad;
  }
  Variable forward(const Variable& x) {
    if constexpr (n == 2) return avg_pool2d(x, this->args);
    else return avg_pool(x, this->args);
  }
  std::string kind() const override { return str("AvgPool", n, "d"); }
};
using AvgPool1d = AvgPool<1>;  ///< input (N, C, L)
using AvgPool2d = AvgPool<2>;  ///< input (N, C, H, W)
using AvgPool3d = AvgPool<3>;  ///< input (N, C, D, H, W)

/// (sum of x^p)^(1/p) over each window.
template <int n> struct LPPool : pools::AnyPool<LPPool<n>> {
  struct Options {
    double p;
    pools::Size<n> kernel;
    std::optional<pools::Size<n>> stride = {};
    bool ceil_mode = false;
  };
  explicit LPPool(const Options& o)
      : pools::AnyPool<LPPool>(pools::args_of(o.kernel, o.stride, pools::Size<n>(0), pools::Size<n>(1), o.ceil_mode)),
        p(o.p) {}
  Variable forward(const Variable& x) { return lp_pool(x, p, this->args); }
  std::string kind() const override { return str("LPPool", n, "d"); }
  std::string options() const override { return str("p ", p, ", ", pools::AnyPool<LPPool>::options()); }
  double p;
};
using LPPool1d = LPPool<1>;  ///< input (N, C, L)
using LPPool2d = LPPool<2>;  ///< input (N, C, H, W)
using LPPool3d = LPPool<3>;  ///< input (N, C, D, H, W)

/// Base of adaptive pooling: the output has the sizes `output`; -1 keeps the input's size.
template <class Derived, int n> struct AdaptivePool : Layer<Derived> {
  struct Options {
    pools::Size<n> output = 1;
  };
  explicit AdaptivePool(const Options& o = Options()) : output(pools::dims_of(o.output)) {}
  std::string options() const override { return str("output ", output); }
  Dims output;
};
/// Mean of each window. The windows have nearly equal sizes and together cover the input.
template <int n> struct AdaptiveAvgPool : AdaptivePool<AdaptiveAvgPool<n>, n> {
  using AdaptivePool<AdaptiveAvgPool, n>::AdaptivePool;
  Variable forward(const Variable& x) { return adaptive_avg_pool(x, this->output); }
  std::string kind() const override { return str("AdaptiveAvgPool", n, "d"); }
};
using AdaptiveAvgPool1d = AdaptiveAvgPool<1>;  ///< input (N, C, L)
using AdaptiveAvgPool2d = AdaptiveAvgPool<2>;  ///< input (N, C, H, W)
using AdaptiveAvgPool3d = AdaptiveAvgPool<3>;  ///< input (N, C, D, H, W)
/// Maximum of each window. The windows have nearly equal sizes and together cover the input.
template <int n> struct AdaptiveMaxPool : AdaptivePool<AdaptiveMaxPool<n>, n> {
  using AdaptivePool<AdaptiveMaxPool, n>::AdaptivePool;
  Variable forward(const Variable& x) { return with_indices(x).values; }
  /// Returns the positions of the maxima, too, as max_pool_indices() does.
  VariableIndices with_indices(const Variable& x) { return adaptive_max_pool(x, this->output); }
  std::string kind() const override { return str("AdaptiveMaxPool", n, "d"); }
};
using AdaptiveMaxPool1d = AdaptiveMaxPool<1>;  ///< input (N, C, L)
using AdaptiveMaxPool2d = AdaptiveMaxPool<2>;  ///< input (N, C, H, W)
using AdaptiveMaxPool3d = AdaptiveMaxPool<3>;  ///< input (N, C, D, H, W)

/// Inverse of a MaxPool with the same options: puts x at the positions of the maxima, and zeros elsewhere. sizes:
/// spatial sizes of the result. Give them if MaxPool maps inputs of several sizes to the size of x.
template <int n> struct MaxUnpool : pools::AnyPool<MaxUnpool<n>> {
  struct Options {
    pools::Size<n> kernel = 2;
    std::optional<pools::Size<n>> stride = {};
    pools::Size<n> padding = 0;
  };
  explicit MaxUnpool(const Options& o = Options())
      : pools::AnyPool<MaxUnpool>(pools::args_of(o.kernel, o.stride, o.padding, pools::Size<n>(1), false)) {}
  Variable forward(const Variable& x, const Tensor& indices, const Dims& sizes = {}) {
    const PoolArgs& a = this->args;
    Dims all = sizes;
    for (int d = 0; sizes.empty() && d < n && d + 2 < x.dim(); ++d)
      all.push_back((x.size(d + 2) - 1) * a.stride[d] - 2 * a.padding[d] + a.kernel[d]);
    return max_unpool(x, indices, all);
  }
  std::string kind() const override { return str("MaxUnpool", n, "d"); }
};
using MaxUnpool1d = MaxUnpool<1>;  ///< input (N, C, L)
using MaxUnpool2d = MaxUnpool<2>;  ///< input (N, C, H, W)
using MaxUnpool3d = MaxUnpool<3>;  ///< input (N, C, D, H, W)

/// x / (k + alpha m)^beta, where m is the mean square of the `size` nearest channels (Krizhevsky et al., 2012). Input
/// (N, C, ...) of at least 3 dims.
struct LocalResponseNorm : Layer<LocalResponseNorm> {
  struct Options {
    int64_t size;
    double alpha = 1e-4, beta = 0.75, k = 1;
  };
  /// Error unless size > 0.
  explicit LocalResponseNorm(const Options& options);
  Variable forward(const Variable& x);
  std::string options() const override { return str("size ", o.size); }
  Options o;
};

}  // namespace nn
}  // namespace lockstep
