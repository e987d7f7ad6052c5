#pragma once
// Layers that rearrange elements.
#include "nn/module.h"

namespace lockstep::nn {

/// Splits one dim into several; at most one size may be -1 and is inferred.
struct Unflatten : Layer<Unflatten> {
  struct Options {
    int64_t dim;
    Shape shape;
  };
  explicit Unflatten(const Options& options);
  Variable forward(const Variable& x);
  std::string options() const override { return str("dim ", o.dim, ", shape ", o.shape); }
  Options o;
};

/// (..., C f^2, H, W) to (..., C, H f, W f): moves channels into space (Shi et al., 2016).
struct PixelShuffle : Layer<PixelShuffle> {
  struct Options {
    int64_t factor;
  };
  explicit PixelShuffle(const Options& o);
  Variable forward(const Variable& x);
  std::string options() const override { return str("factor ", factor); }
  int64_t factor;
};

/// (..., C, H f, W f) to (..., C f^2, H, W): the inverse of PixelShuffle.
struct PixelUnshuffle : Layer<PixelUnshuffle> {
  using Options = PixelShuffle::Options;
  explicit PixelUnshuffle(const Options& o);
  Variable forward(const Variable& x);
  std::string options() const override { return str("factor ", factor); }
  int64_t factor;
};

/// (N, C, ...): transposes the channels as a matrix (groups, C / groups), so channel i of group g becomes channel g of
/// group i (Zhang et al., 2018).
struct ChannelShuffle : Layer<ChannelShuffle> {
  struct Options {
    int64_t groups;
  };
  explicit ChannelShuffle(const Options& o);
  Variable forward(const Variable& x);
  std::string options() const override { return str("groups ", groups); }
  int64_t groups;
};

}  // namespace lockstep::nn
