#pragma once
// Activations, Dropout, Flatten and Identity. Elementwise layers take any shape and give the same shape; the formulas
// below are per element.
#include "nn/module.h"

namespace lockstep::nn {

/// max(x, 0).
struct ReLU : Layer<ReLU> {
  Variable forward(const Variable& x) { return relu(x); }
};
/// x sigmoid(x), also called swish (Elfwing et al., 2017).
struct SiLU : Layer<SiLU> {
  Variable forward(const Variable& x) { return silu(x); }
};
/// tanh(x).
struct Tanh : Layer<Tanh> {
  Variable forward(const Variable& x) { return tanh(x); }
};
/// 1 / (1 + exp(-x)).
struct Sigmoid : Layer<Sigmoid> {
  Variable forward(const Variable& x) { return sigmoid(x); }
};

/// x times the normal distribution function at x (Hendrycks and Gimpel, 2016), exact (erf) or by the tanh formula.
struct GELU : Layer<GELU> {
  /// approximate: erf for the exact function, tanh for the approximation that GPT-2 uses.
  struct Options {
    Gelu approximate = Gelu::erf;
  };
  GELU() : GELU(Options{}) {}
  explicit GELU(const Options& o) : approximate(o.approximate) {}
  Variable forward(const Variable& x) { return gelu(x, approximate); }
  std::string options() const override { return approximate == Gelu::erf ? "" : "tanh"; }
  Gelu approximate;
};

/// exp(x) / sum of exp(x) along dim.
struct Softmax : Layer<Softmax> {
  /// dim: the dim along which the outputs add up to 1.
  struct Options {
    int64_t dim = -1;
  };
  Softmax() : Softmax(Options{}) {}
  explicit Softmax(const Options& o) : dim(o.dim) {}
  Variable forward(const Variable& x) { return softmax(x, dim); }
  int64_t dim;
};

/// In training zeroes each element with probability p and scales the others by 1 / (1 - p) (Srivastava et al., 2014).
struct Dropout : Layer<Dropout> {
  /// p: probability that an element is zeroed.
  struct Options {
    double p = 0.5;
  };
  Dropout() : Dropout(Options{}) {}
  /// Error unless p is in [0, 1].
  explicit Dropout(const Options& o) : p(o.p) {
    LOCKSTEP_CHECK(p >= 0 && p <= 1, "[Dropout] expected p in [0, 1], got ", p);
  }
  Variable forward(const Variable& x) { return dropout(x, p, is_training(), part); }
  /// True if a call returns x unchanged and no hook needs the call.
  bool is_identity() const { return !has_hooks() && (p == 0 || !is_training()); }
  /// residual + dropout(x), fused into one pass unless the layer has hooks.
  Variable apply_and_add(const Variable& residual, const Variable& x) {
    return has_hooks() ? add(residual, (*this)(x)) : add_dropout(residual, x, p, is_training(), part);
  }
  std::string options() const override { return str("p ", p); }
  void sharded(const PartOf& of) override { part = of; }
  double p;
  PartOf part;  ///< set if x is a part of a sharded tensor: the mask is a part of the whole tensor's mask
};

/// Returns its input.
struct Identity : Layer<Identity> {
  Variable forward(const Variable& x) { return x; }
};

/// Merges dims `first` to `last` (inclusive) into one.
struct Flatten : Layer<Flatten> {
  /// The first and last dim to merge; negative ones count from the end.
  struct Options {
    int64_t first = 1, last = -1;
  };
  Flatten() : Flatten(Options{}) {}
  explicit Flatten(const Options& options) : o(options) {}
  /// Returns a view of x if the strides of x allow it, else a copy.
  Variable forward(const Variable& x) { return x.flatten(o.first, o.last); }
  Options o;
};

}  // namespace lockstep::nn
