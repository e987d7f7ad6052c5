#pragma once
// Attention as torch.nn.MultiheadAttention computes it: keys and values of another sequence, masks, attention weights.
//
//   nn::MaskedAttention reads({.embed = 64, .heads = 4});
//   const Variable y = reads(query, memory, memory, {.padding = padding}).output;  // (B, T, 64), (B, S, 64)
#include <memory>
#include <string>
#include <vector>

#include "nn/attention.h"

namespace lockstep::nn {

/// Masks as torch.nn.MultiheadAttention takes them: a bool mask is true where attention is forbidden, a floating one is
/// added to the scores.
struct AttentionMasks {
  Tensor mask = {};     ///< attn_mask: (T, S) or (B * heads, T, S)
  Tensor padding = {};  ///< key_padding_mask, (B, S)
  bool causal = false;  ///< true: query i sees keys 0 to i only
  /// True if there is any mask.
  bool any() const { return mask.defined() || padding.defined() || causal; }
};
/// Attention weights that a call returns. mean and of_heads need memory for the whole T x S matrix.
enum class AttentionWeights { none, mean, of_heads };
/// Result of MaskedAttention.
struct AttentionOutput {
  Variable output;   ///< (B, T, embed)
  Variable weights;  ///< after dropout: (B, T, S) averaged over heads, (B, heads, T, S), or undefined
  /// Calls fn for each variable; see nn/outputs.h.
  void each_variable(const auto& fn) {
    fn(output);
    if (weights.defined()) fn(weights);
  }
};

/// Multi-head attention with masks. query (B, T, embed), key and value (B, S, embed). It has the parameters of
/// MultiHeadAttention, which computes self-attention.
struct MaskedAttention : Layer<MaskedAttention>, AttentionHeads {
  /// See AttentionOptions.
  struct Options {
    int64_t embed, heads, kv_heads = 0;
    bool causal = false, bias = true;  ///< causal: as AttentionMasks::causal in every call
    double dropout = 0;
    int64_t head_size = 0;
    bool out_bias = true;
    bool cross = true;   ///< false: query, key and value are one variable, which in_proj multiplies at once
    int64_t window = 0;  ///< needs cross = false
  };
  explicit MaskedAttention(const Options& options);
  /// Error unless cross is true or the arguments are the same variable three times.
  AttentionOutput forward(const Variable& query, const Variable& key, const Variable& value,
                          const AttentionMasks& masks = {}, AttentionWeights wanted = AttentionWeights::none);
  using Layer::operator();
  /// Calls forward(). It lets a caller write masks in braces: attention(q, k, v, {.causal = true}).
  AttentionOutput operator()(const Variable& query, const Variable& key, const Variable& value,
                             const AttentionMasks& masks, AttentionWeights wanted = AttentionWeights::none) {
    return Layer::operator()(query, key, value, masks, wanted);
  }
  void fields(Fields& f) override {
    f("in_proj", in_proj, cut::heads(o.heads, o.kv_heads))("out_proj", out_proj, cut::rows);
  }
  std::vector<Variable> reads() override;
  void sharded(const PartOf& of) override { take_part(of); }
  int64_t share_sequence(const std::shared_ptr<SequencePart>& of) override;
  double flops_beside(int64_t tokens) const override { return flops_of_scores(tokens); }
  std::string options() const override { return text(); }

  bool cross;

 private:
  Variable projected(const Variable& x, int64_t first, int64_t count);
  Tensor visible_keys(const AttentionMasks& masks, int64_t batch, int64_t queries, int64_t keys,
                      const Variable& like) const;
};

}  // namespace lockstep::nn
