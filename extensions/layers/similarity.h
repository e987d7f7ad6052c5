#pragma once
// Layers with two inputs: Bilinear, CosineSimilarity and PairwiseDistance.
#include "nn/module.h"

namespace lockstep::nn {

/// y_o = a^T w_o b + bias_o: a (..., in1), b (..., in2) give (..., out). weight (out, in1, in2) and bias (out) start
/// U(-1/sqrt(in1), 1/sqrt(in1)).
struct Bilinear : Layer<Bilinear> {
  struct Options {
    int64_t in1, in2, out;
    bool bias = true;
  };
  explicit Bilinear(const Options& o);
  Variable forward(const Variable& a, const Variable& b);
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override;

  Variable weight, bias;
};

/// Cosine of the angle between the vectors along dim, which is removed. The shapes broadcast. Lengths below eps count
/// as eps.
struct CosineSimilarity : Layer<CosineSimilarity> {
  struct Options {
    int64_t dim = 1;
    double eps = 1e-8;
  };
  CosineSimilarity() : CosineSimilarity(Options{}) {}
  explicit CosineSimilarity(const Options& options) : o(options) {}
  Variable forward(const Variable& a, const Variable& b);
  Options o;
};

/// The p-norm of a - b + eps along the last dim. The shapes broadcast. p > 0; infinity is allowed.
struct PairwiseDistance : Layer<PairwiseDistance> {
  struct Options {
    double p = 2, eps = 1e-6;
    bool keepdim = false;
  };
  PairwiseDistance() : PairwiseDistance(Options{}) {}
  explicit PairwiseDistance(const Options& options);
  Variable forward(const Variable& a, const Variable& b);
  Options o;
};

}  // namespace lockstep::nn
