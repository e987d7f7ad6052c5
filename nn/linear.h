#pragma once
// Linear, two of them as an Mlp, Embedding, EmbeddingBag and Head.
#include "autograd/fp8.h"
#include "nn/module.h"
#include "tensor/quantized.h"

namespace lockstep::nn {

/// A weight in codes (nn/quantize.h): two frozen parameters in place of one.
struct QuantizedWeight {
  Variable codes, scales;
  QuantFormat format;
  int64_t in;  ///< when it was whole
  QuantMatmulArgs how;
  DType dtype = f32;  ///< of the weight that it was
  /// What is here, which may be a slice.
  Quantized here() const;
  /// What linear() takes for the weight.
  Variable handle() const;
  void fields(Fields& f) { f.fixed("weight.codes", codes).fixed("weight.scales", scales); }
};

/// y = x w^T + b. weight (out, in), bias (out); both start U(-1/sqrt(in), 1/sqrt(in)) as PyTorch's.
struct Linear : Layer<Linear> {
  struct Options {
    int64_t in, out;
    bool bias = true;
  };
  explicit Linear(const Options& options);
  Variable forward(const Variable& x) { return forward(x, Activation::none); }
  /// The same with an activation fused behind.
  Variable forward(const Variable& x, Activation activation) {
    return adapter ? adapted(x, activation) : base(x, activation);
  }
  /// residual + that, in one product where adds().
  Variable forward(const Variable& x, const Variable& residual) {
    return adds() ? linear_add(residual, x, weight, bias) : add(residual, forward(x));
  }
  /// Whether its product may have a residual added: nothing stands between, and nobody looks.
  bool adds() const { return !quantized && !product && !adapter && fp8.expired() && !is_watched(); }
  void fields(Fields& f) override {
    quantized ? quantized->fields(f) : void(f("weight", weight));
    f("bias", bias);
    if (adapter) f("lora", *adapter);
  }
  std::string options() const override;

  using Product =
      std::function<Variable(const Variable& x, const Variable& weight, const Variable& bias, Activation activation)>;
  Variable weight, bias;  ///< of a quantised one: a handle (tensor/quantized.h)
  std::shared_ptr<QuantizedWeight> quantized;
  Product product;  ///< stands in for linear(), when set: parallel/tensor/ puts one here that works on slices
  std::shared_ptr<Module>
      adapter;                   ///< what it makes of x is added before the activation, when there is one (nn/lora.h)
  std::weak_ptr<Fp8Scales> fp8;  ///< it multiplies in fp8 while these exist (nn/fp8.h)

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

/// What a feed-forward layer computes: down(gelu(up x)), or down(silu(gate x) up x) (Shazeer, 2020).
enum class FeedForward { gelu, swiglu };

struct Mlp : Layer<Mlp> {
  struct Options {
    int64_t width, inner;
    Gelu gelu = Gelu::tanh;
    bool bias = true;
    nn::FeedForward kind = nn::FeedForward::gelu;
  };
  explicit Mlp(const Options& options);
  Variable forward(const Variable& x) { return down(hidden(x)); }
  /// residual + that; `down` adds it where adds().
  Variable forward(const Variable& x, const Variable& residual) { return down(hidden(x), residual); }
  bool adds() const { return down.adds() && !is_watched(); }
  void fields(Fields& f) override {
    if (gate) f("gate", *gate, cut::columns);
    f("up", up, cut::columns)("down", down, cut::rows);
  }

  Options o;
  std::optional<Linear> gate;  ///< of swiglu
  Linear up, down;

 private:
  Variable hidden(const Variable& x) {
    if (gate) return silu_mul((*gate)(x), up(x));
    return up(x, o.gelu == Gelu::tanh ? Activation::gelu_tanh : Activation::gelu_erf);
  }
};

/// Rows of a table: index i64 (...) gives (..., dim). weight (num, dim) starts N(0, 1). The padding row stays as it is.
struct Embedding : Layer<Embedding> {
  struct Options {
    int64_t num, dim, padding_index = -1;
  };
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
  std::function<Variable(const Variable& weight, const Tensor& index)> lookup;  ///< stands in for embedding(), when set
};

/// Sums, means or maxima of bags of rows. index i64 (n): bag i is from offsets[i] to the next one's start, offsets i64
/// (bags), which begin at 0; with last_offset the end of the last bag stands behind them. index (bags, n): its rows,
/// without offsets. Gives (bags, dim); an empty bag 0. Rows of padding_index do not count. weights of index's shape:
/// times the rows, sums only.
struct EmbeddingBag : Layer<EmbeddingBag> {
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

/// Scores of the rows of a table, its own (num, dim), which starts N(0, 0.02), or an Embedding's (Press and Wolf,
/// 2017): x (..., dim) gives (..., num).
struct Head : Layer<Head> {
  struct Options {
    int64_t num, dim;
  };
  explicit Head(const Options& options);
  explicit Head(const Embedding& tied) : weight(tied.weight) {}
  Variable forward(const Variable& x) { return gather ? gather(scores(x)) : scores(x); }
  /// Their mean cross entropy with targets i64 (...). Where the scores are many they never exist as a whole
  /// (linear_cross_entropy()).
  Variable forward(const Variable& x, const Tensor& targets);
  /// In two steps; the scores are those of the rows that are here.
  Variable scores(const Variable& x) {
    const Variable w = quantized ? quantized->handle() : weight;
    return product ? product(x, w, {}, Activation::none) : linear(x, w);
  }
  Variable loss(const Variable& scores, const Tensor& targets) {
    return entropy ? entropy(scores, targets) : cross_entropy(scores.view({-1, weight.size(0)}), targets.reshape({-1}));
  }
  void fields(Fields& f) override { quantized ? quantized->fields(f) : void(f("weight", weight)); }
  Table table() const override { return Table::scored; }
  std::string options() const override;

  Variable weight;
  int64_t rows_at_once = 0;  ///< of scores that a loss holds; 0: linear_cross_entropy_rows(), some 96 MiB
  std::shared_ptr<QuantizedWeight> quantized;  ///< a copy of the weight, when it is tied
  Linear::Product product;  ///< stands in for linear(), when set; then gather makes its scores whole, and entropy
                            ///< stands in for cross_entropy()
  std::function<Variable(const Variable& scores)> gather;
  std::function<Variable(const Variable& scores, const Tensor& targets)> entropy;
};

}  // namespace lockstep::nn
