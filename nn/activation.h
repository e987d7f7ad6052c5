#pragma once
// Layers without parameters: activations, Dropout, Flatten, and losses as layers.
#include "nn/module.h"

namespace lockstep::nn {

struct ReLU : Layer<ReLU> {
  Variable forward(const Variable& x) { return relu(x); }
};
struct SiLU : Layer<SiLU> {
  Variable forward(const Variable& x) { return silu(x); }
};
struct Tanh : Layer<Tanh> {
  Variable forward(const Variable& x) { return tanh(x); }
};
struct Sigmoid : Layer<Sigmoid> {
  Variable forward(const Variable& x) { return sigmoid(x); }
};
struct Mish : Layer<Mish> {
  Variable forward(const Variable& x) { return mish(x); }
};
struct Hardswish : Layer<Hardswish> {
  Variable forward(const Variable& x) { return hardswish(x); }
};

struct GELU : Layer<GELU> {
  struct Options {
    Gelu approximate = Gelu::erf;
  };
  GELU() : GELU(Options{}) {}
  explicit GELU(const Options& o) : approximate(o.approximate) {}
  Variable forward(const Variable& x) { return gelu(x, approximate); }
  std::string options() const override { return approximate == Gelu::erf ? "" : "tanh"; }
  Gelu approximate;
};

struct LeakyReLU : Layer<LeakyReLU> {
  struct Options {
    double slope = 0.01;
  };
  LeakyReLU() : LeakyReLU(Options{}) {}
  explicit LeakyReLU(const Options& o) : slope(o.slope) {}
  Variable forward(const Variable& x) { return leaky_relu(x, slope); }
  double slope;
};

struct ELU : Layer<ELU> {
  struct Options {
    double alpha = 1;
  };
  ELU() : ELU(Options{}) {}
  explicit ELU(const Options& o) : alpha(o.alpha) {}
  Variable forward(const Variable& x) { return elu(x, alpha); }
  double alpha;
};

struct Softplus : Layer<Softplus> {
  struct Options {
    double beta = 1, threshold = 20;
  };
  Softplus() : Softplus(Options{}) {}
  explicit Softplus(const Options& options) : o(options) {}
  Variable forward(const Variable& x) { return softplus(x, o.beta, o.threshold); }
  Options o;
};

struct Softmax : Layer<Softmax> {
  struct Options {
    int64_t dim = -1;
  };
  Softmax() : Softmax(Options{}) {}
  explicit Softmax(const Options& o) : dim(o.dim) {}
  Variable forward(const Variable& x) { return softmax(x, dim); }
  int64_t dim;
};

/// Zeroes elements with probability p while training, and scales the others by 1 / (1 - p).
struct Dropout : Layer<Dropout> {
  struct Options {
    double p = 0.5;
  };
  Dropout() : Dropout(Options{}) {}
  explicit Dropout(const Options& o) : p(o.p) {
    LOCKSTEP_CHECK(p >= 0 && p <= 1, "[Dropout] expected p in [0, 1], got ", p);
  }
  Variable forward(const Variable& x) { return dropout(x, p, is_training(), part); }
  std::string options() const override { return str("p ", p); }
  void sliced(const PartOf& of) override { part = of; }
  double p;
  PartOf part;  ///< when x is a part of a tensor
};

struct Flatten : Layer<Flatten> {
  struct Options {
    int64_t first = 1, last = -1;
  };
  Flatten() : Flatten(Options{}) {}
  explicit Flatten(const Options& options) : o(options) {}
  Variable forward(const Variable& x) { return x.flatten(o.first, o.last); }
  Options o;
};

// Losses as layers, for code written that way; the functions in autograd/ops.h are the same.
struct MSELoss : Layer<MSELoss> {
  Variable forward(const Variable& x, const Variable& target) { return mse_loss(x, target); }
};
struct L1Loss : Layer<L1Loss> {
  Variable forward(const Variable& x, const Variable& target) { return l1_loss(x, target); }
};
struct BCEWithLogitsLoss : Layer<BCEWithLogitsLoss> {
  Variable forward(const Variable& x, const Variable& target) { return bce_with_logits(x, target); }
};
struct CrossEntropyLoss : Layer<CrossEntropyLoss> {
  explicit CrossEntropyLoss(CrossEntropyOptions options = CrossEntropyOptions()) : o(std::move(options)) {}
  Variable forward(const Variable& logits, const Variable& target) { return cross_entropy(logits, target, o); }
  CrossEntropyOptions o;
};

}  // namespace lockstep::nn
