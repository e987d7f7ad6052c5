#pragma once
// Multi-head self-attention: grouped-query heads, rotary positions, sliding windows, block-sparse layouts, and a
// key-value cache for generation. Attention to other sequences is in extensions/layers/masked_attention.h.
#include "nn/activation.h"
#include "nn/linear.h"
#include "nn/rope.h"

namespace lockstep::nn {

/// Keys and values of the tokens so far, for generation. Without a table: tensors (B, kv heads, capacity, head size)
/// whose capacity starts at 256 tokens and doubles when it is full. With a table (paged cache): one sequence, whose
/// tokens lie in the blocks `table` of tensors (blocks, kv heads, tokens per block, head size) that several sequences
/// share. The caller must have allocated enough blocks for the table.
struct KvCache {
  Tensor keys, values;
  int64_t length = 0;
  /// Dtype of the stored values; f16 and bf16 halve the memory. Default: the dtype of the appended keys.
  std::optional<DType> dtype = {};
  const std::vector<int32_t>* table = nullptr;

  /// Appends k and v (B, kv heads, T, head size). If they do not fit, doubles the capacity until they do, but not
  /// beyond `max_length` tokens unless they need more.
  void append(const Tensor& k, const Tensor& v, int64_t max_length);
  /// Returns the part of `of` (`keys` or `values`) from token `first` on, converted to dtype `as`. If the cache has a
  /// `table` of blocks, `first` must be a multiple of the block size.
  Tensor filled(const Tensor& of, DType as, int64_t first = 0) const;
};

/// One sequence of a ragged batch: its cache, and how many consecutive rows of the batch are its next tokens.
struct KvRows {
  KvCache* cache;
  int64_t tokens;
};

/// Says which blocks of scores each head computes (block-sparse attention), for a sequence of any length.
class BlockPattern {
 public:
  virtual ~BlockPattern() = default;
  virtual std::string name() const = 0;  ///< for MultiHeadAttention::options()
  virtual int64_t block() const = 0;     ///< tokens of a block
  virtual bool is_causal() const = 0;    ///< true if layouts end at the diagonal
  /// The layout of a sequence, with ceil(tokens / block()) rows, on the default device. heads: the whole model's.
  virtual BlockLayout layout(int64_t heads, int64_t tokens) const = 0;
};
/// A layout as a mask per token: bool (layout.heads, tokens, tokens), true where a block is attended to.
Tensor mask_of(const BlockLayout& layout, int64_t tokens);

/// This rank's part of a sequence that several ranks share (parallel/sequence/context_parallel.h).
struct SequencePart {
  int ranks = 1;
  /// The positions (i64) of this rank's tokens in the whole sequence, if the rank holds `tokens` tokens.
  std::function<Tensor(int64_t tokens)> positions;
  /// Replaces attention(). q (B, heads, T, D) and k, v (B, kv heads, T, D) belong to this rank's T tokens; each query
  /// attends to the whole sequence.
  std::function<Variable(const Variable& q, const Variable& k, const Variable& v, const AttentionArgs& args)> attend;
};

/// Options of attention layers. Error unless kv_heads divides heads. Error if heads does not divide embed and head_size
/// is 0.
struct AttentionOptions {
  int64_t embed, heads;
  int64_t kv_heads = 0;  ///< fewer than heads: grouped-query attention (Ainslie et al., 2023); 0: same as heads
  /// causal: true if a token sees only itself and earlier ones. bias: true adds biases to in_proj, and to out_proj
  /// unless out_bias is false.
  bool causal = true, bias = true;
  double dropout = 0;                    ///< dropout probability of attention weights
  std::shared_ptr<RopeTable> rope = {};  ///< rotary positions; layers may share one table
  int64_t max_context = 2048;            ///< upper bound of T with rope or a cache
  int64_t head_size = 0;                 ///< 0: embed / heads
  bool out_bias = true;
  /// Set by sharded() on a tensor-parallel rank: the rank's first head, and the number of heads of the model.
  int64_t first_head = 0, all_heads = 0;
  std::shared_ptr<const BlockPattern> sparse = {};  ///< attend only to the blocks of this pattern
  int64_t window = 0;  ///< causal only: a token sees itself and the window - 1 tokens before it; 0: all before it
};

/// The projections of an attention layer: into queries, keys and values by head, and back. The rows of in_proj are
/// queries, keys, values, in this order. in_proj.weight starts Xavier-uniform, biases at 0, as in PyTorch.
struct AttentionHeads {
  /// kind: the layer's name in errors.
  AttentionHeads(const char* kind, const AttentionOptions& options);
  /// Queries (B, heads, T, head size); keys and values (B, kv heads, T, head size).
  struct Heads {
    Variable q, k, v;
  };
  /// The heads of in_proj's output.
  Heads split(const Variable& projected) const;
  /// Splits features into heads: (B, T, heads * head size) to (B, heads, T, head size).
  Variable by_head(const Variable& projected, int64_t heads) const;
  /// Joins the heads: (B, heads, T, head size) to (B, T, heads * head size).
  Variable joined(const Variable& heads) const;
  /// Arguments of attention(), without a layout; training: true draws a key for dropout.
  AttentionArgs args(bool training, Device device) const;
  void take_part(const PartOf& of);              ///< what the layer's sharded() does
  double flops_of_scores(int64_t tokens) const;  ///< what its flops_beside() returns
  std::string text() const;                      ///< what its options() returns

  AttentionOptions o;
  Linear in_proj, out_proj;
};

/// Self-attention: x (B, T, embed) gives (B, T, embed) (Vaswani et al., 2017).
struct MultiHeadAttention : Layer<MultiHeadAttention>, AttentionHeads {
  using Options = AttentionOptions;
  explicit MultiHeadAttention(const Options& options);
  /// Self-attention. mask: see attention() in tensor/ops.h.
  Variable forward(const Variable& x, const Tensor& mask = {}) { return out_proj(attended(x, mask)); }
  /// Returns residual + forward(x). If adds() is true, out_proj adds the residual within its matrix product.
  Variable forward(const Variable& x, const Variable& residual) { return out_proj(attended(x, Tensor()), residual); }
  /// True if out_proj can add the residual in its product (Linear::adds()).
  bool adds() const { return out_proj.adds() && !is_watched(); }
  /// Appends the keys and values of x to the cache, and attends to all tokens in the cache. For generation; records no
  /// gradients.
  Variable forward(const Variable& x, KvCache& cache);
  /// Continues several sequences at once. x (1, sum of tokens, embed) concatenates the new tokens of all sequences.
  Variable forward(const Variable& x, const std::vector<KvRows>& rows) {
    const NoGrad no_grad;
    return out_proj(attended(x, rows));
  }
  Variable forward(const Variable& x, const std::vector<KvRows>& rows, const Variable& residual) {
    const NoGrad no_grad;
    return out_proj(attended(x, rows), residual);
  }
  /// Attention weights averaged over heads, (B, T, T), for inspection. Holds the whole matrix in memory.
  Tensor weights(const Variable& x);
  void fields(Fields& f) override {
    f("in_proj", in_proj, cut::heads(o.heads, o.kv_heads))("out_proj", out_proj, cut::rows);
  }
  void sharded(const PartOf& of) override { take_part(of); }
  int64_t share_sequence(const std::shared_ptr<SequencePart>& of) override;
  double flops_beside(int64_t tokens) const override { return flops_of_scores(tokens); }
  /// Replaces the sparse pattern; the layer becomes causal if the pattern is. Error if the layer has a window, runs
  /// under context parallelism, or is causal while the pattern is not.
  void set_sparsity(std::shared_ptr<const BlockPattern> pattern);
  std::string options() const override { return text(); }

  std::shared_ptr<SequencePart> part;  ///< set under context parallelism; null: x is a whole sequence

 private:
  // Attention output before out_proj, (B, T, heads * head size).
  Variable attended(const Variable& x, const Tensor& mask);
  Variable attended(const Variable& x, const std::vector<KvRows>& rows);
  Variable placed(Variable projected, int64_t position);
  Variable turned(Variable projected, const RopeTable::Angles& angles) const;
  Variable in_blocks(Variable projected, const std::vector<KvRows>& rows);
  void check_cached(int64_t end) const;
  Variable with_cache(Variable projected, KvCache& cache);
  AttentionArgs args(int64_t tokens, Device device);
  std::shared_ptr<const BlockLayout> layout(int64_t tokens, Device device);
  std::shared_ptr<const BlockLayout> layout_;  // cached for the last length
};

}  // namespace lockstep::nn
