#pragma once
// Pooling of signals (N, C, L), images (N, C, H, W) and volumes (N, C, D, H, W). One template a kind: n is the number
// of dims behind C.
#include <optional>

#include "autograd/pools.h"
#include "nn/conv.h"

namespace lockstep::nn {

namespace pools {
template <class Size>
PoolArgs args_of(const Size& kernel, const std::optional<Size>& stride, const Size& padding, const Size& dilation,
                 bool ceil_mode) {
  return {.kernel = dims_of(kernel),
          .stride = dims_of(stride.value_or(kernel)),
          .padding = dims_of(padding),
          .dilation = dims_of(dilation),
          .ceil_mode = ceil_mode};
}
inline std::string text_of(const PoolArgs& args) { return str("kernel ", args.kernel, ", stride ", args.stride); }
}  // namespace pools

/// stride not given: kernel.
template <class Derived, int n> struct MaxPool : Layer<Derived> {
  struct Options {
    pools::Size<n> kernel = 2;
    std::optional<pools::Size<n>> stride = {};
    pools::Size<n> padding = 0, dilation = 1;
    bool ceil_mode = false;
  };
  explicit MaxPool(const Options& o = Options())
      : args(pools::args_of(o.kernel, o.stride, o.padding, o.dilation, o.ceil_mode)) {}
  Variable forward(const Variable& x) { return max_pool(x, args); }
  VariableIndices with_indices(const Variable& x) { return max_pool_indices(x, args); }  ///< for MaxUnpool
  std::string options() const override { return pools::text_of(args); }
  PoolArgs args;
};
struct MaxPool1d : MaxPool<MaxPool1d, 1> {
  using MaxPool::MaxPool;
};
struct MaxPool2d : MaxPool<MaxPool2d, 2> {
  using MaxPool::MaxPool;
  Variable forward(const Variable& x) { return max_pool2d(x, args); }
};
struct MaxPool3d : MaxPool<MaxPool3d, 3> {
  using MaxPool::MaxPool;
};

template <class Derived, int n> struct AvgPool : Layer<Derived> {
  struct Options {
    pools::Size<n> kernel = 2;
    std::optional<pools::Size<n>> stride = {};
    pools::Size<n> padding = 0;
    bool ceil_mode = false, count_include_pad = true;
  };
  explicit AvgPool(const Options& o = Options())
      : args(pools::args_of(o.kernel, o.stride, o.padding, pools::Size<n>(1), o.ceil_mode)) {
    args.count_include_pad = o.count_include_pad;
  }
  Variable forward(const Variable& x) { return avg_pool(x, args); }
  std::string options() const override { return pools::text_of(args); }
  PoolArgs args;
};
struct AvgPool1d : AvgPool<AvgPool1d, 1> {
  using AvgPool::AvgPool;
};
struct AvgPool2d : AvgPool<AvgPool2d, 2> {
  using AvgPool::AvgPool;
  Variable forward(const Variable& x) { return avg_pool2d(x, args); }
};
struct AvgPool3d : AvgPool<AvgPool3d, 3> {
  using AvgPool::AvgPool;
};

/// (sum of x^p)^(1/p) over each window.
template <class Derived, int n> struct LPPool : Layer<Derived> {
  struct Options {
    double p;
    pools::Size<n> kernel;
    std::optional<pools::Size<n>> stride = {};
    bool ceil_mode = false;
  };
  explicit LPPool(const Options& o)
      : p(o.p), args(pools::args_of(o.kernel, o.stride, pools::Size<n>(0), pools::Size<n>(1), o.ceil_mode)) {}
  Variable forward(const Variable& x) { return lp_pool(x, p, args); }
  std::string options() const override { return str("p ", p, ", ", pools::text_of(args)); }
  double p;
  PoolArgs args;
};
struct LPPool1d : LPPool<LPPool1d, 1> {
  using LPPool::LPPool;
};
struct LPPool2d : LPPool<LPPool2d, 2> {
  using LPPool::LPPool;
};
struct LPPool3d : LPPool<LPPool3d, 3> {
  using LPPool::LPPool;
};

/// output: sizes of the result; -1: as x.
template <class Derived, int n> struct AdaptivePool : Layer<Derived> {
  struct Options {
    pools::Size<n> output = 1;
  };
  explicit AdaptivePool(const Options& o = Options()) : output(pools::dims_of(o.output)) {}
  std::string options() const override { return str("output ", output); }
  Dims output;
};
struct AdaptiveAvgPool1d : AdaptivePool<AdaptiveAvgPool1d, 1> {
  using AdaptivePool::AdaptivePool;
  Variable forward(const Variable& x) { return adaptive_avg_pool(x, output); }
};
struct AdaptiveAvgPool2d : AdaptivePool<AdaptiveAvgPool2d, 2> {
  using AdaptivePool::AdaptivePool;
  Variable forward(const Variable& x) { return adaptive_avg_pool2d(x, output[0], output[1]); }
};
struct AdaptiveAvgPool3d : AdaptivePool<AdaptiveAvgPool3d, 3> {
  using AdaptivePool::AdaptivePool;
  Variable forward(const Variable& x) { return adaptive_avg_pool(x, output); }
};
template <class Derived, int n> struct AdaptiveMaxPool : AdaptivePool<Derived, n> {
  using AdaptivePool<Derived, n>::AdaptivePool;
  Variable forward(const Variable& x) { return with_indices(x).values; }
  VariableIndices with_indices(const Variable& x) { return adaptive_max_pool(x, this->output); }
};
struct AdaptiveMaxPool1d : AdaptiveMaxPool<AdaptiveMaxPool1d, 1> {
  using AdaptiveMaxPool::AdaptiveMaxPool;
};
struct AdaptiveMaxPool2d : AdaptiveMaxPool<AdaptiveMaxPool2d, 2> {
  using AdaptiveMaxPool::AdaptiveMaxPool;
};
struct AdaptiveMaxPool3d : AdaptiveMaxPool<AdaptiveMaxPool3d, 3> {
  using AdaptiveMaxPool::AdaptiveMaxPool;
};

/// The way back of a MaxPool with these options: zeros but at the places of the maxima. sizes: of what was pooled,
/// where several would have given as much.
template <class Derived, int n> struct MaxUnpool : Layer<Derived> {
  struct Options {
    pools::Size<n> kernel = 2;
    std::optional<pools::Size<n>> stride = {};
    pools::Size<n> padding = 0;
  };
  explicit MaxUnpool(const Options& o = Options())
      : args(pools::args_of(o.kernel, o.stride, o.padding, pools::Size<n>(1), false)) {}
  Variable forward(const Variable& x, const Tensor& indices, const Dims& sizes = {}) {
    Dims all = sizes;
    for (int d = 0; sizes.empty() && d < n && d + 2 < x.dim(); ++d)
      all.push_back((x.size(d + 2) - 1) * args.stride[d] - 2 * args.padding[d] + args.kernel[d]);
    return max_unpool(x, indices, all);
  }
  std::string options() const override { return pools::text_of(args); }
  PoolArgs args;
};
struct MaxUnpool1d : MaxUnpool<MaxUnpool1d, 1> {
  using MaxUnpool::MaxUnpool;
};
struct MaxUnpool2d : MaxUnpool<MaxUnpool2d, 2> {
  using MaxUnpool::MaxUnpool;
};
struct MaxUnpool3d : MaxUnpool<MaxUnpool3d, 3> {
  using MaxUnpool::MaxUnpool;
};

}  // namespace lockstep::nn
