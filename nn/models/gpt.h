#pragma once
// Decoders: embeddings of tokens, pre-norm blocks, a final norm, and a head. The options are GPT-2's where nothing is
// said (a table of positions, LayerNorm, GELU, the head tied to the tokens' table), and can be Llama's and its
// relatives' (rotary positions, RMSNorm, SwiGLU, shared key heads): docs/llama.md.
#include "nn/models/block.h"

namespace lockstep::nn {

struct FolderNotes;

struct GPT : Layer<GPT> {
  struct Options {
    int64_t vocab = 256, context = 128, layers = 4, width = 128, heads = 4, inner = 0;  ///< inner 0 means 4 width
    int64_t kv_heads = 0, head_size = 0;                                                ///< 0: heads, width / heads
    double dropout = 0, norm_eps = 1e-5;
    Norm::Kind norm = Norm::layer;
    nn::FeedForward feed_forward = nn::FeedForward::gelu;
    Gelu gelu = Gelu::tanh;
    std::optional<Rope> rope = {};  ///< rotary positions in place of a table
    bool tied = true,
         bias = true;  ///< bias false: none anywhere; else norms have one, and the others where these say so
    bool attention_bias = true, attention_out_bias = true, mlp_bias = true;
    /// Of attention, in blocks from number window_from on; 0: a token sees all before it (Mistral, Qwen 2).
    int64_t window = 0, window_from = 0;
    bool checkpoint_blocks = false;  ///< recompute each block in backward instead of keeping its activations
    friend bool operator==(const Options&, const Options&) = default;
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
  /// The same of the tokens behind any of these, counted over all sequences: (rows, vocab).
  Variable scores_behind(const std::vector<int64_t>& rows, const std::vector<std::span<const int64_t>>& tokens,
                         const std::vector<std::vector<KvCache>*>& caches);
  void fields(Fields& f) override;
  /// Tokens, positions, the halves of each block, norm, head.
  LayerList layers() override;
  std::string options() const override;
  int64_t share_sequence(const std::shared_ptr<SequencePart>& of) override { return part = of, 0; }
  std::vector<Variable> reads() override;

  Options o;
  Embedding tokens_table;
  std::optional<Embedding> position_table;  ///< without rope
  Dropout dropout;
  ModuleList<TransformerBlock> blocks;
  Norm norm;
  Head head;
  std::shared_ptr<const FolderNotes> notes;  ///< of the folder whose weights these were; null: of none
  std::shared_ptr<SequencePart> part;        ///< of which forward() gets the tokens; null: whole sequences

 private:
  Variable embed(const Tensor& tokens, int64_t position);
  Variable placed(const Variable& x, int64_t position);
  Variable stream(const Tensor& tokens);  // after the last block
};

}  // namespace lockstep::nn
