#pragma once
// The GPT-2 family: token and position embeddings, pre-norm blocks, a final norm, and a head tied to the tokens' table.
#include "nn/attention.h"
#include "nn/container.h"
#include "nn/norm.h"

namespace lockstep::nn {

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
  Variable forward(const Variable& x) { return second_half(first_half(x)); }
  Variable forward(const Variable& x, const std::vector<KvRows>& rows);
  /// Its two halves.
  LayerList layers() override;
  FeedForward feed_forward_place() override { return {&mlp, &feed_forward}; }
  void fields(Fields& f) override {
    f("norm1", norm1, cut::tokens)("attention", attention)("norm2", norm2, cut::tokens)(
        "mlp", feed_forward ? *feed_forward : mlp)("dropout", dropout, cut::tokens);
  }

  LayerNorm norm1;
  MultiHeadAttention attention;
  LayerNorm norm2;
  Mlp mlp;
  Dropout dropout;
  std::shared_ptr<Module> feed_forward;  ///< in place of `mlp`, under its name, when there is one: experts, say

 private:
  Variable fed_forward(const Variable& x) { return feed_forward ? feed_forward->call(x) : mlp(x); }
  Variable first_half(const Variable& x) { return add(x, dropout(attention(norm1(x)))); }
  Variable second_half(const Variable& x) { return add(x, dropout(fed_forward(norm2(x)))); }
};

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
  /// The scores of the token behind each sequence's next tokens, (sequences, vocab): tokens[i] follow what caches[i],
  /// one a block, have. The linear layers see one matrix, and nothing is padded.
  Variable next_scores(const std::vector<std::span<const int64_t>>& tokens,
                       const std::vector<std::vector<KvCache>*>& caches);
  void fields(Fields& f) override;
  /// Tokens, positions, the halves of each block, norm, head.
  LayerList layers() override;
  std::string options() const override;
  int64_t share_sequence(const std::shared_ptr<SequencePart>& of) override { return part = of, 0; }
  std::vector<Variable> reads() override {
    return {tokens_table.weight, position_table.weight};
  }  // a tied table once, for both ends

  Options o;
  Embedding tokens_table, position_table;
  Dropout dropout;
  ModuleList<TransformerBlock> blocks;
  LayerNorm norm;
  Head head;
  std::shared_ptr<SequencePart> part;  ///< of which forward() gets the tokens; null: whole sequences

 private:
  Variable embed(const Tensor& tokens, int64_t position);
  Variable placed(const Variable& x, int64_t position);
  Variable stream(const Tensor& tokens);  // after the last block
};

}  // namespace lockstep::nn
