#pragma once
// Multi-head attention: many heads over one projection, grouped-query, rotary, and a cache for generation.
#include "nn/activation.h"
#include "nn/linear.h"
#include "nn/rope.h"
#include "nn/sparse.h"

namespace lockstep::nn {

/// Keys and values of the tokens seen so far, (B, kv heads, room, head size). The room doubles when it is full, from
/// 256 tokens on. Or, with a table: of one sequence, in blocks of a memory (blocks, kv heads, tokens of a block, head
/// size) that others share; who owns the table has made room.
struct KvCache {
  Tensor keys, values;
  int64_t length = 0;
  std::optional<DType> dtype = {};  ///< f16 or bf16 take half of the memory; none: as computed
  const std::vector<int32_t>* table = nullptr;

  /// k and v (B, kv heads, T, head size) behind what is there; room for more than `most` tokens is not made ahead.
  void append(const Tensor& k, const Tensor& v, int64_t most);
  /// The part of keys or values that is filled, in `as`; without the first tokens of it, in whole blocks of a table.
  Tensor filled(const Tensor& of, DType as, int64_t first = 0) const;
};

/// A sequence of a batch whose sequences have lengths of their own: how many of the batch's rows are its next tokens.
struct KvRows {
  KvCache* cache;
  int64_t tokens;
};

/// A rank's part of a sequence that several share (parallel/sequence/context_parallel.h).
struct SequencePart {
  int ranks = 1;
  std::function<Tensor(int64_t tokens)> positions;  ///< in the sequence, i64, when this rank has so many of its tokens
  /// In place of attention() on q (B, H, T, D) and k, v (B, G, T, D) of these tokens: sees all of the sequence.
  std::function<Variable(const Variable& q, const Variable& k, const Variable& v, const AttentionArgs& args)> attend;
};

/// What attention may not see, in torch.nn's words: bool masks are true where nothing is seen, floating ones are added
/// to the scores.
struct AttentionMasks {
  Tensor mask = {};     ///< (T, S), or (B * heads, T, S)
  Tensor padding = {};  ///< of the keys, (B, S)
  bool causal = false;  ///< query i sees keys up to i
  bool any() const { return mask.defined() || padding.defined() || causal; }
};
/// Which weights a call of attention gives back: they cost the T x S matrix.
enum class AttentionWeights { none, mean, of_heads };
struct AttentionOutput {
  Variable output;   ///< (B, T, embed)
  Variable weights;  ///< (B, T, S) the mean over heads, (B, heads, T, S), or undefined; behind their dropout
  void each_variable(const auto& fn) {
    fn(output);
    if (weights.defined()) fn(weights);
  }
};

/// x (B, T, embed) gives (B, T, embed). in_proj makes queries, keys and values, in this order of rows.
struct MultiHeadAttention : Layer<MultiHeadAttention> {
  struct Options {
    int64_t embed, heads;
    int64_t kv_heads = 0;  ///< fewer than heads: grouped-query attention (Ainslie et al., 2023); 0 means heads
    bool causal = true, bias = true;       ///< bias: of in_proj, and of out_proj unless that says no
    double dropout = 0;                    ///< of attention weights
    std::shared_ptr<RopeTable> rope = {};  ///< rotary positions; other layers may have the same table
    int64_t max_context = 2048;            ///< longest T with rope
    int64_t head_size = 0;                 ///< 0 means embed / heads
    bool out_bias = true;
    int64_t first_head = 0, all_heads = 0;      ///< set by sliced(): these heads are part of so many
    std::optional<SparsityConfig> sparse = {};  ///< attends to these blocks only
    bool cross = false;                         ///< keys and values come of other sequences than queries
    int64_t window = 0;  ///< causal: a token sees itself and the window - 1 before it; 0: all before it
  };
  explicit MultiHeadAttention(const Options& options);
  /// mask: see attention() in tensor/ops.h
  Variable forward(const Variable& x, const Tensor& mask = {}) { return out_proj(attended(x, mask)); }
  /// residual + that; out_proj adds it where adds().
  Variable forward(const Variable& x, const Variable& residual) { return out_proj(attended(x, Tensor()), residual); }
  bool adds() const { return out_proj.adds() && !is_watched(); }
  /// torch.nn.MultiheadAttention: query (B, T, embed), key and value (B, S, embed), which are query itself unless the
  /// options say cross. Neither rotary nor sparse.
  AttentionOutput forward(const Variable& query, const Variable& key, const Variable& value,
                          const AttentionMasks& masks = {}, AttentionWeights wanted = AttentionWeights::none);
  using Layer::operator();
  AttentionOutput operator()(const Variable& query, const Variable& key, const Variable& value,
                             const AttentionMasks& masks, AttentionWeights wanted = AttentionWeights::none) {
    return Layer::operator()(query, key, value, masks, wanted);  // masks in braces
  }
  /// Attends to the cached tokens as well, and adds x's to the cache. For generation, without gradients.
  Variable forward(const Variable& x, KvCache& cache);
  /// The same for the rows of several sequences, one behind another: x (1, sum of their tokens, embed).
  Variable forward(const Variable& x, const std::vector<KvRows>& rows) {
    const NoGrad no_grad;
    return out_proj(attended(x, rows));
  }
  Variable forward(const Variable& x, const std::vector<KvRows>& rows, const Variable& residual) {
    const NoGrad no_grad;
    return out_proj(attended(x, rows), residual);
  }
  /// The weights averaged over heads, (B, T, T). For looking at: this one does hold the matrix.
  Tensor weights(const Variable& x);
  void fields(Fields& f) override {
    f("in_proj", in_proj, cut::heads(o.heads, o.kv_heads))("out_proj", out_proj, cut::rows);
  }
  std::vector<Variable> reads() override;
  void sliced(const PartOf& of) override;
  int64_t share_sequence(const std::shared_ptr<SequencePart>& of) override;
  double flops_beside(int64_t tokens) const override;
  /// From here on; in place of what it had.
  void set_sparsity(const SparsityConfig& config);
  std::string options() const override;

  Options o;
  Linear in_proj, out_proj;
  std::shared_ptr<SequencePart> part;  ///< null: x is a whole sequence

 private:
  struct Heads {
    Variable q, k, v;
  };  // (B, H, T, D), (B, G, T, D) twice
  // Before out_proj.
  Variable attended(const Variable& x, const Tensor& mask);
  Variable attended(const Variable& x, const std::vector<KvRows>& rows);
  Variable placed(Variable projected, int64_t position);
  Variable turned(Variable projected, const RopeTable::Angles& angles) const;
  Heads split(const Variable& projected) const;
  Variable by_head(const Variable& projected, int64_t heads) const;
  Variable projected(const Variable& x, int64_t first, int64_t count);
  Tensor seen(const AttentionMasks& masks, int64_t batch, int64_t queries, int64_t keys, const Variable& like) const;
  Variable in_blocks(Variable projected, const std::vector<KvRows>& rows);
  void check_cached(int64_t end) const;
  Variable with_cache(Variable projected, KvCache& cache);
  Variable joined(const Variable& heads);
  Variable merge(const Variable& heads);
  AttentionArgs args(int64_t tokens, Device device);
  std::shared_ptr<const BlockLayout> layout(int64_t tokens, Device device);
  std::shared_ptr<const BlockLayout> layout_;  // of the last length
};

}  // namespace lockstep::nn
