#pragma once
// Linear, Mlp (two or three Linears), Embedding, EmbeddingBag and Head.
#include "autograd/fp8.h"
#include "nn/module.h"
#include "tensor/quantized.h"

namespace lockstep::nn {

/// A quantised weight (nn/quantize.h): two frozen parameters, codes and scales, in place of the weight.
struct QuantizedWeight {
  Variable codes, scales;
  QuantFormat format;
  int64_t in;  ///< columns of the unsharded weight
  QuantMatmulArgs how;
  DType dtype = f32;  ///< dtype of the weight before quantisation
  /// The quantised weight on this rank; under tensor parallelism a slice.
  Quantized here() const;
  /// A placeholder that stands for the codes when it is passed to linear() as the weight (tensor/quantized.h).
  Variable handle() const;
  /// Lists codes and scales under the names that they have in files.
  void fields(Fields& f) { f.fixed("weight.codes", codes).fixed("weight.scales", scales); }
};

/// y = x w^T + b: x (..., in) gives (..., out). weight (out, in), bias (out); both start U(-1/sqrt(in), 1/sqrt(in)), as
/// in PyTorch.
struct Linear : Layer<Linear> {
  struct Options {
    int64_t in, out;
    bool bias = true;
  };
  /// Error for negative sizes.
  explicit Linear(const Options& options);
  Variable forward(const Variable& x) { return forward(x, Activation::none); }
  /// forward() followed by an activation, which the matrix product computes, too.
  Variable forward(const Variable& x, Activation activation) {
    return adapter ? adapted(x, activation) : base(x, activation);
  }
  /// residual + forward(x). If adds() is true, the matrix product adds the residual.
  Variable forward(const Variable& x, const Variable& residual) {
    return adds() ? linear_add(residual, x, weight, bias) : add(residual, forward(x));
  }
  /// True if the product can add a residual: a plain weight, no adapter, and no hook that reads the result.
  bool adds() const { return !quantized && !product && !adapter && fp8.expired() && !is_watched(); }
  void fields(Fields& f) override {
    quantized ? quantized->fields(f) : void(f("weight", weight));
    f("bias", bias);
    if (adapter) f("lora", *adapter);
  }
  std::string options() const override;

  /// A function that replaces linear(), the matrix product of the layer.
  using Product =
      std::function<Variable(const Variable& x, const Variable& weight, const Variable& bias, Activation activation)>;
  Variable weight, bias;  ///< weight: in a quantised layer a placeholder (tensor/quantized.h)
  std::shared_ptr<QuantizedWeight> quantized;
  /// If set, replaces linear(); tensor parallelism (parallel/tensor_parallel/) sets a product that works on shards.
  Product product;
  /// If set, the adapter's output for x is added before the activation (nn/lora.h).
  std::shared_ptr<Module> adapter;
  std::weak_ptr<Fp8Scales> fp8;  ///< the layer multiplies in fp8 while these scales exist (nn/fp8.h)

 private:
  Variable base(const Variable& x, Activation activation) {
    const Variable w = quantized ? quantized->handle() : weight;
    const std::shared_ptr<Fp8Scales> scales = fp8.lock();
    if (scales) scales->notes = is_training() && NoGrad::grad_enabled();
    const Fp8Scope here(scales.get());
    return product ? product(x, w, bias, activation) : linear(x, w, bias, activation);
  }
  Variable adapted(const Variable& x, Activation activation);
};

/// Kind of feed-forward layer: gelu is down(gelu(up x)), swiglu is down(silu(gate x) * up x) (Shazeer, 2020).
enum class FeedForward { gelu, swiglu };

/// Feed-forward layer of a transformer: x (..., width) gives (..., width), with `inner` hidden features.
struct Mlp : Layer<Mlp> {
  struct Options {
    int64_t width, inner;
    Gelu gelu = Gelu::tanh;
    bool bias = true;
    nn::FeedForward kind = nn::FeedForward::gelu;
  };
  explicit Mlp(const Options& options);
  Variable forward(const Variable& x) { return down(hidden(x)); }
  /// residual + forward(x). If adds() is true, `down` adds the residual within its matrix product.
  Variable forward(const Variable& x, const Variable& residual) { return down(hidden(x), residual); }
  /// True if `down` can add the residual in its product.
  bool adds() const { return down.adds() && !is_watched(); }
  void fields(Fields& f) override {
    if (gate) f("gate", *gate, cut::columns);
    f("up", up, cut::columns)("down", down, cut::rows);
  }

  Options o;
  std::optional<Linear> gate;  ///< swiglu only
  Linear up, down;

 private:
  Variable hidden(const Variable& x) {
    if (gate) return silu_mul((*gate)(x), up(x));
    return up(x, o.gelu == Gelu::tanh ? Activation::gelu_tanh : Activation::gelu_erf);
  }
};

/// Rows of a table: index i64 (...) gives (..., dim). weight (num, dim) starts N(0, 1). The row padding_index starts at
/// 0 and gets no gradient.
struct Embedding : Layer<Embedding> {
  struct Options {
    int64_t num, dim, padding_index = -1;
  };
  /// Error unless sizes are positive and padding_index < num.
  explicit Embedding(const Options& options);
  Variable forward(const Tensor& index) {
    return lookup ? lookup(weight, index) : embedding(weight, index, padding_index);
  }
  Variable forward(const Variable& index) { return forward(index.tensor()); }
  void fields(Fields& f) override { f("weight", weight); }
  Table table() const override { return Table::picked; }
  std::string options() const override;

  Variable weight;
  int64_t padding_index;
  /// If set, replaces embedding().
  std::function<Variable(const Variable& weight, const Tensor& index)> lookup;
};

/// Sums, means or maxima over bags of table rows; gives (bags, dim). Bags are given as
///   index i64 (n) and offsets i64 (bags): bag i is index[offsets[i]] up to index[offsets[i + 1]]; offsets[0] is 0.
///     With last_offset, offsets has one more element, the end of the last bag;
///   or index i64 (bags, n) without offsets: each row is a bag.
/// An empty bag gives 0. Rows of padding_index do not count. weights, of index's shape, multiply the rows (sum only).
struct EmbeddingBag : Layer<EmbeddingBag> {
  /// Reduction over the rows of a bag.
  enum class Mode { sum, mean, max };
  struct Options {
    int64_t num, dim;
    Mode mode = Mode::mean;
    int64_t padding_index = -1;
    bool last_offset = false;
  };
  explicit EmbeddingBag(const Options& options)
      : o(options), rows({.num = o.num, .dim = o.dim, .padding_index = o.padding_index}) {}
  Variable forward(const Tensor& index, const Tensor& offsets = {}, const Variable& weights = {});
  void fields(Fields& f) override { rows.fields(f); }
  Table table() const override { return Table::picked; }
  std::string options() const override { return rows.options(); }

  Options o;
  Embedding rows;

 private:
  Variable largest(const Tensor& index, const std::vector<int64_t>& values, const std::vector<int64_t>& starts);
};

/// Output layer: scores of x (..., dim) against the rows of a table, (..., num). The table (num, dim) belongs to the
/// head and starts N(0, 0.02^2), or the head shares the table of an Embedding (Press and Wolf, 2017).
struct Head : Layer<Head> {
  struct Options {
    int64_t num, dim;
  };
  /// Error unless both sizes are positive.
  explicit Head(const Options& options);
  /// Uses the table of `tied` as its weight.
  explicit Head(const Embedding& tied) : weight(tied.weight) {}
  Variable forward(const Variable& x) { return gather ? gather(scores(x)) : scores(x); }
  /// Mean cross entropy of the scores with targets i64 (...). On a GPU, and for long inputs on the CPU, the forward
  /// computes the gradients, too, in chunks of rows if memory is short (linear_cross_entropy()).
  Variable forward(const Variable& x, const Tensor& targets);
  /// Returns the scores that loss() takes. Under tensor parallelism these are only the scores of this rank's rows of
  /// the table. On a GPU each row of scores may have padding behind it (tensor/padded.h).
  Variable scores(const Variable& x);
  /// Mean cross entropy of the scores that scores() returned, with targets i64 (...).
  Variable loss(const Variable& scores, const Tensor& targets) {
    return entropy ? entropy(scores, targets) : cross_entropy(scores.view({-1, weight.size(0)}), targets.reshape({-1}));
  }
  void fields(Fields& f) override { quantized ? quantized->fields(f) : void(f("weight", weight)); }
  Table table() const override { return Table::scored; }
  std::string options() const override;

  Variable weight;
  int64_t rows_at_once = 0;  ///< rows of scores that a loss holds at once; 0: linear_cross_entropy_rows()
  std::shared_ptr<QuantizedWeight> quantized;  ///< quantised copy of a tied table
  /// Set by tensor parallelism, together with the two functions below. product replaces linear() and computes only the
  /// scores of this rank's rows of the table. entropy replaces cross_entropy() for such scores.
  Linear::Product product;
  std::function<Variable(const Variable& scores)> gather;  ///< assembles the scores of all ranks; see product
  std::function<Variable(const Variable& scores, const Tensor& targets)> entropy;  ///< see product
};

}  // namespace lockstep::nn
