#pragma once
// Linear and Embedding.
#include "nn/module.h"

namespace lockstep::nn {

/// y = x w^T + b. weight (out, in), bias (out); both start U(-1/sqrt(in), 1/sqrt(in)) as PyTorch's.
struct Linear : Layer<Linear> {
  struct Options { int64_t in, out; bool bias = true; };
  explicit Linear(const Options& options);
  Variable forward(const Variable& x) { return forward(x, Activation::none); }
  /// The same with an activation fused behind.
  Variable forward(const Variable& x, Activation activation) { return product ? product(x, weight, bias, activation) : linear(x, weight, bias, activation); }
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override;

  Variable weight, bias;
  /// Stands in for linear(), when set: tensor_parallel/ puts one here that works on slices.
  std::function<Variable(const Variable& x, const Variable& weight, const Variable& bias, Activation activation)> product;
};

/// Rows of a table: index i64 (...) gives (..., dim). weight (num, dim) starts N(0, 1). The padding row stays as it is.
struct Embedding : Layer<Embedding> {
  struct Options { int64_t num, dim, padding_index = -1; };
  explicit Embedding(const Options& options);
  Variable forward(const Tensor& index) { return lookup ? lookup(weight, index) : embedding(weight, index, padding_index); }
  Variable forward(const Variable& index) { return forward(index.tensor()); }
  void fields(Fields& f) override { f("weight", weight); }
  std::string options() const override;

  Variable weight;
  int64_t padding_index;
  std::function<Variable(const Variable& weight, const Tensor& index)> lookup;  ///< stands in for embedding(), when set
};

}  // namespace lockstep::nn
