#pragma once
// The GPT-2 family: token and position embeddings, pre-norm blocks, a final norm, and a head tied to the tokens' table.
#include "nn/attention.h"
#include "nn/container.h"
#include "nn/norm.h"

namespace lockstep::nn {

/// Two linear layers with GELU between.
struct Mlp : Layer<Mlp> {
  struct Options { int64_t width, inner; Gelu gelu = Gelu::tanh; bool bias = true; };
  explicit Mlp(const Options& o)
      : up({.in = o.width, .out = o.inner, .bias = o.bias}), down({.in = o.inner, .out = o.width, .bias = o.bias}),
        activation(o.gelu == Gelu::tanh ? Activation::gelu_tanh : Activation::gelu_erf) {}
  Variable forward(const Variable& x) { return down(up(x, activation)); }
  void fields(Fields& f) override { f("up", up)("down", down); }

  Linear up, down;
  Activation activation;
};

/// x + attention(norm(x)), then x + mlp(norm(x)) (Radford et al., 2019)
struct TransformerBlock : Layer<TransformerBlock> {
  struct Options {
    int64_t width, heads, kv_heads = 0, inner = 0;  ///< inner 0 means 4 width
    bool causal = true, bias = true, rotary = false;
    double dropout = 0, norm_eps = 1e-5;
    Gelu gelu = Gelu::tanh;
    int64_t max_context = 2048;
  };
  explicit TransformerBlock(const Options& o);
  Variable forward(const Variable& x);
  Variable forward(const Variable& x, KvCache& cache);
  void fields(Fields& f) override { f("norm1", norm1)("attention", attention)("norm2", norm2)("mlp", feed_forward ? *feed_forward : mlp)("dropout", dropout); }

  LayerNorm norm1;
  MultiHeadAttention attention;
  LayerNorm norm2;
  Mlp mlp;
  Dropout dropout;
  std::shared_ptr<Module> feed_forward;  ///< in place of `mlp`, under its name, when there is one: experts, say

 private:
  Variable second(const Variable& x) { return feed_forward ? feed_forward->call(x) : mlp(x); }
};

/// How the next token is chosen. temperature 0 takes the likeliest.
struct Sampling {
  double temperature = 1;
  int64_t top_k = 0;   ///< 0: all
  double top_p = 1;    ///< nucleus (Holtzman et al., 2020)
};

/// What the table has for `tokens` tokens: of positions from `first` on, or of those that `part` says.
Variable positions_of(Embedding& table, int64_t tokens, int64_t first, const SequencePart* part);

struct GPT : Layer<GPT> {
  struct Options {
    int64_t vocab = 256, context = 128, layers = 4, width = 128, heads = 4, inner = 0;
    double dropout = 0, norm_eps = 1e-5;
    Gelu gelu = Gelu::tanh;
    bool tied = true, bias = true;
    bool checkpoint_blocks = false;  ///< recompute each block in backward instead of keeping its activations
  };
  /// Weights N(0, 0.02), those that feed the residual stream N(0, 0.02 / sqrt(2 layers)), biases 0 (GPT-2's).
  explicit GPT(const Options& options);
  /// tokens i64 (B, T), T <= context; gives logits (B, T, vocab).
  Variable forward(const Tensor& tokens);
  /// The loss itself.
  Variable forward(const Tensor& tokens, const Tensor& targets);
  /// Mean cross entropy of targets i64 (B, T).
  Variable loss(const Tensor& tokens, const Tensor& targets);
  /// The stream before each block and after the last, (B, T, width): hidden states as Transformers counts them
  /// (the last one after the final norm).
  std::vector<Variable> hidden_states(const Tensor& tokens);
  /// Continues `prompt` (1, T) by `count` tokens, one call of `emit` for each; stops early when emit returns false.
  /// Slides the context when it is full.
  Tensor generate(const Tensor& prompt, int64_t count, const Sampling& sampling = {}, const std::function<bool(int64_t)>& emit = {});
  void fields(Fields& f) override;
  std::string options() const override;
  std::vector<Variable> reads() override { return {tokens_table.weight, position_table.weight}; }

  Options o;
  Embedding tokens_table, position_table;
  Dropout dropout;
  ModuleList<TransformerBlock> blocks;
  LayerNorm norm;
  Variable head;  ///< (vocab, width) when not tied, else undefined
  /// Stand in for linear() and for cross_entropy() of it, when set: tensor_parallel/ puts some here that work on slices of the table.
  std::function<Variable(const Variable& x, const Variable& table)> head_product;
  std::function<Variable(const Variable& x, const Variable& table, const Tensor& targets)> head_loss;
  std::shared_ptr<SequencePart> part;  ///< of which forward() gets the tokens; null: whole sequences

 private:
  Variable embed(const Tensor& tokens, int64_t position);
  Variable stream(const Tensor& tokens);  // after the last block
  const Variable& table() const { return head.defined() ? head : tokens_table.weight; }
  Variable logits(const Variable& x) { return head_product ? head_product(norm(x), table()) : linear(norm(x), table()); }
};

}  // namespace lockstep::nn
