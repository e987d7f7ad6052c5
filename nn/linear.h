#pragma once
// Linear, Mlp (two or three Linears), Embedding and Head.
#include "nn/attachment.h"

namespace lockstep::nn {

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
  Variable forward(const Variable& x, Activation activation);
  /// residual + forward(x). If adds() is true, the matrix product adds the residual.
  Variable forward(const Variable& x, const Variable& residual) {
    return adds() ? linear_add(residual, x, weight, bias) : add(residual, forward(x));
  }
  /// True if the product can add a residual: nothing is attached, and no hook reads the result.
  bool adds() const { return attached.is_empty() && !is_watched(); }
  void fields(Fields& f) override;
  std::string options() const override;

  Variable weight, bias;  ///< if attached.store holds the weight, only the shape, dtype and device of `weight` count
  Attachment attached;    ///< what extensions and tensor parallelism have attached
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
  void fields(Fields& f) override { attached.store ? attached.store->fields(f) : void(f("weight", weight)); }
  Table table() const override { return Table::scored; }
  std::string options() const override;

  Variable weight;
  int64_t rows_at_once = 0;  ///< rows of scores that a loss holds at once; 0: linear_cross_entropy_rows()
  /// As in a Linear. attached.store may keep a copy of a tied table. Tensor parallelism sets attached.place, which then
  /// computes only the scores of this rank's rows of the table, and the two functions below.
  Attachment attached;
  std::function<Variable(const Variable& scores)> gather;  ///< assembles the scores of all ranks
  /// Replaces cross_entropy() for the scores of this rank's rows.
  std::function<Variable(const Variable& scores, const Tensor& targets)> entropy;
};

}  // namespace lockstep::nn
