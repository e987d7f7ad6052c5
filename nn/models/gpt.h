#pragma once
// GPT: a decoder-only model of token embeddings, pre-norm blocks, a final norm and an output head. The default options
// are GPT-2's: learned positions, LayerNorm, GELU, tied head. Others give Llama and its relatives: rotary positions,
// RMSNorm, SwiGLU, grouped-query attention; see docs/llama.md. TransformerBlock is the block of all these models.
#include <any>

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
    return adds(mlp) && !feed_forward ? mlp(x, residual) : dropout.apply_and_add(residual, fed_forward(x));
  }
  Variable first_half(const Variable& x) {
    return adds(attention) ? attention(norm1(x), x) : dropout.apply_and_add(x, attention(norm1(x)));
  }
  Variable second_half(const Variable& x) { return with_fed_forward(x, norm2(x)); }
};

/// A decoder-only language model. forward() runs whole sequences; next_scores() generates with caches.
struct GPT : Layer<GPT> {
  /// The defaults make a small GPT-2.
  struct Options {
    int64_t vocab = 256, context = 128, layers = 4, width = 128, heads = 4, inner = 0;  ///< inner 0: 4 width
    /// kv_heads 0: as many as heads; head_size 0: width / heads.
    int64_t kv_heads = 0, head_size = 0;
    double dropout = 0, norm_eps = 1e-5;
    Norm::Kind norm = Norm::layer;
    nn::FeedForward feed_forward = nn::FeedForward::gelu;
    Gelu gelu = Gelu::tanh;
    std::optional<Rope> rope = {};  ///< rotary positions instead of learned ones
    /// bias false: no biases at all; true: norms have a bias, and the flags below decide for the other layers.
    bool tied = true, bias = true;
    bool attention_bias = true, attention_out_bias = true, mlp_bias = true;
    /// Sliding window of attention, in blocks window_from and later; 0: a token sees all before it (Mistral, Qwen 2).
    int64_t window = 0, window_from = 0;
    bool checkpoint_blocks = false;  ///< true: recompute each block in backward instead of keeping its activations
    friend bool operator==(const Options&, const Options&) = default;
  };
  /// Initialises as GPT-2: weights N(0, 0.02^2), those that write to the residual stream N(0, 0.02^2 / (2 layers)),
  /// biases 0. Error for sizes that are not positive.
  explicit GPT(const Options& options);
  /// tokens i64 (B, T), T <= context; returns logits (B, T, vocab). In eval mode under NoGrad, the logits are
  /// bit-identical to those of next_scores() (tensor/batch_invariant.h).
  Variable forward(const Tensor& tokens);
  /// Returns the mean cross entropy of the logits with targets i64 (B, T). Call loss() instead, which also runs hooks.
  Variable forward(const Tensor& tokens, const Tensor& targets);
  /// Returns the mean cross entropy of the logits with targets i64 (B, T), and runs the model's hooks.
  Variable loss(const Tensor& tokens, const Tensor& targets);
  /// The residual stream before each block, and the final norm's output, each (B, T, width); layers + 1 tensors, as in
  /// Transformers.
  std::vector<Variable> hidden_states(const Tensor& tokens);
  /// Generation step for several sequences: appends tokens[i] to caches[i] (one cache per block) and returns the logits
  /// after each sequence's last token, (sequences, vocab). All rows go through the linear layers as one matrix, without
  /// padding.
  Variable next_scores(const std::vector<std::span<const int64_t>>& tokens,
                       const std::vector<std::vector<KvCache>*>& caches);
  /// Like next_scores(), but returns the logits (rows, vocab) after chosen tokens: `rows` are indices into the new
  /// tokens of all sequences, one sequence after the other.
  Variable scores_behind(const std::vector<int64_t>& rows, const std::vector<std::span<const int64_t>>& tokens,
                         const std::vector<std::vector<KvCache>*>& caches);
  void fields(Fields& f) override;
  /// The layers: token embedding, positions, the two halves of each block, norm, head.
  LayerList layers() override;
  std::string options() const override;
  int64_t share_sequence(const std::shared_ptr<SequencePart>& of) override { return part = of, 0; }
  std::vector<Variable> reads() override;

  Options o;
  Embedding tokens_table;
  std::optional<Embedding> position_table;  ///< absent with rope
  Dropout dropout;
  ModuleList<TransformerBlock> blocks;
  Norm norm;
  Head head;
  std::any notes;                      ///< data that the reader of the model's files keeps here for saving
  std::shared_ptr<SequencePart> part;  ///< set under context parallelism; null: forward() gets whole sequences

 private:
  Variable embed(const Tensor& tokens, int64_t position);
  Variable placed(const Variable& x, int64_t position);
  Variable stream(const Tensor& tokens);  // output of the last block
};

/// Options by name: "gpt:LAYERSxWIDTHxHEADS" or "llama:LAYERSxWIDTHxHEADS", with the other options taken from `usual`.
/// others: text that the Error adds to name the caller's other sources of options, such as ", or a config.json".
GPT::Options gpt_options(const std::string& text, const GPT::Options& usual = {}, const std::string& others = "");

}  // namespace lockstep::nn
