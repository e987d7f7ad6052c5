#pragma once
// TransformerBlock: the decoder block of GPT-2, Llama and related models.
#include "nn/attention.h"
#include "nn/container.h"
#include "nn/norm.h"

namespace lockstep::nn {

/// y = x + attention(norm(x)), then y + mlp(norm(y)), the pre-norm block (Radford et al., 2019).
struct TransformerBlock : Layer<TransformerBlock> {
  /// Options. Names that GPT::Options has, too, have the same meaning.
  struct Options {
    int64_t width, heads, kv_heads = 0, head_size = 0, inner = 0;  ///< inner 0: 4 width
    bool causal = true;
    /// bias: false turns off attention_bias, attention_out_bias, mlp_bias and the bias of LayerNorm, too.
    bool bias = true, attention_bias = true, attention_out_bias = true, mlp_bias = true;
    double dropout = 0, norm_eps = 1e-5;
    Norm::Kind norm = Norm::layer;
    nn::FeedForward feed_forward = nn::FeedForward::gelu;
    Gelu gelu = Gelu::tanh;
    std::shared_ptr<RopeTable> rope = {};
    int64_t max_context = 2048, window = 0;  ///< window: see MultiHeadAttention
  };
  explicit TransformerBlock(const Options& o);
  Variable forward(const Variable& x) {
    if (adds(attention)) return second_half(first_half(x));
    const auto [sum, normed] = norm2.of_sum(x, attention(norm1(x)), dropout);
    return with_fed_forward(sum, normed);
  }
  /// forward() with caches, for generation; see MultiHeadAttention.
  Variable forward(const Variable& x, const std::vector<KvRows>& rows);
  /// Two layers: the attention half and the feed-forward half.
  LayerList layers() override;
  FeedForward feed_forward_place() override { return {&mlp, &feed_forward}; }
  void fields(Fields& f) override {
    f("norm1", norm1, cut::tokens)("attention", attention)("norm2", norm2, cut::tokens)(
        "mlp", feed_forward ? *feed_forward : mlp)("dropout", dropout, cut::tokens);
  }

  Norm norm1;
  MultiHeadAttention attention;
  Norm norm2;
  Mlp mlp;
  Dropout dropout;
  std::shared_ptr<Module> feed_forward;  ///< if set, replaces `mlp` under its name (mixture of experts)

 private:
  /// True if the last matrix product of `layer` can add the residual to its result.
  bool adds(const auto& layer) const { return layer.adds() && dropout.is_identity(); }
  Variable fed_forward(const Variable& x) { return feed_forward ? feed_forward->call(x) : mlp(x); }
  Variable with_fed_forward(const Variable& residual, const Variable& x) {
    return adds(mlp) && !feed_forward ? mlp(x, residual) : dropout.added(residual, fed_forward(x));
  }
  Variable first_half(const Variable& x) {
    return adds(attention) ? attention(norm1(x), x) : dropout.added(x, attention(norm1(x)));
  }
  Variable second_half(const Variable& x) { return with_fed_forward(x, norm2(x)); }
};

}  // namespace lockstep::nn
